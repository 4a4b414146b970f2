/* data.h: the commands behind `softrnn data`. */
#ifndef SR_CLI_DATA_DATA_H
#define SR_CLI_DATA_DATA_H

int data_prepare(int argc, char **argv);
int data_info(int argc, char **argv);
int data_show(int argc, char **argv);
int data_tasks(int argc, char **argv);

#endif
