/* commands.h: the functions behind the table in main.c, one per cli/<command>.c. */
#ifndef SR_CLI_COMMANDS_H
#define SR_CLI_COMMANDS_H

#include "cli/line/command.h"

int command_attend(int argc, char **argv);
int command_bench(int argc, char **argv);
int command_compare(int argc, char **argv);
int command_convert(int argc, char **argv);
int command_data(int argc, char **argv);
int command_devices(int argc, char **argv);
int command_distil(int argc, char **argv);
int command_eval(int argc, char **argv);
int command_generate(int argc, char **argv);
int command_info(int argc, char **argv);
int command_orders(int argc, char **argv);
int command_report_page(int argc, char **argv);
int command_study(int argc, char **argv);
int command_tokenizer(int argc, char **argv);
int command_train(int argc, char **argv);
int command_variants(int argc, char **argv);
int command_verify(int argc, char **argv);

#endif
