/* tokenizer_train.h: the part of `softrnn tokenizer` that trains. */
#ifndef SR_CLI_DATA_TOKENIZER_TRAIN_H
#define SR_CLI_DATA_TOKENIZER_TRAIN_H

int command_tokenizer_train(int argc, char **argv);

#endif
