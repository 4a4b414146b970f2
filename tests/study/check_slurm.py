#!/usr/bin/env python3
"""check_slurm.py: a real Slurm on this machine: a study by array jobs, with nodes that go down and come back, and a run
shared by ranks started by srun.

Usage: check_slurm.py PROGRAM. Starts its own munged, slurmctld and two slurmd and ends them. Exit 77: Slurm is missing, or
this is not root.
"""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = Path(sys.argv[1]).resolve()
TRAIN = ("--data recall:pairs=4 --layers 2 --hidden 32 --mlp-hidden 64 --heads 2 --batch 4 --threads 1 --save-every 10 "
         "--validate-every 0").split()
STUDY = """
name: small
seeds: [1, 2]
variants: {softmax: softmax, norm: norm, gate: gate}
settings: {layers: 2, hidden: 32, mlp-hidden: 64, heads: 2, batch: 8, steps: 800, save-every: 50, validate-every: 400}
tasks:
  recall: {settings: {data: "recall:pairs=4"}}
cluster: {time: "10:00"}
"""
CONFIGURATION = """
ClusterName=softrnn
SlurmctldHost={host}
SlurmctldPort=17816
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=1,sched_interval=2,requeue_delay=1
ReturnToService=0
JobRequeue=1
KillWait=10
MinJobAge=60
NodeName=n[1-2] NodeHostname={host} Port=[17817-17818] CPUs=1
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=UNLIMITED State=UP
"""


def fail(message):
    print("FAILED:", message)
    sys.exit(1)


def wait_for(condition, what, seconds=200):
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > seconds:
            fail(f"waited {seconds} seconds for {what}")
        time.sleep(0.3)


class Cluster:
    """A Slurm of two nodes on this machine."""

    def __init__(self, folder):
        self.folder, self.started = folder, []

    def begin(self):
        folder = self.folder
        (folder / "state").mkdir()
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o400)
        (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, host=socket.gethostname()))
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        self.start("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/key",
                   f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/seed")
        wait_for((folder / "munge.socket").exists, "munged")
        self.start("slurmctld", "-D")
        for node in ("n1", "n2"):
            (folder / f"spool.{node}").mkdir()
            self.start("slurmd", "-D", "-N", node)
        wait_for(lambda: self.ask("sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"], "two idle nodes")

    def start(self, *command):
        log = open(self.folder / f"{command[0]}.output", "a")
        self.started.append(subprocess.Popen(command, stdout=log, stderr=log))

    def ask(self, *command):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def node(self, name, state):
        words = ["State=" + state] + (["Reason=test"] if state == "DOWN" else [])
        subprocess.run(["scontrol", "update", f"NodeName={name}", *words], check=True)

    def stop(self):
        for process in reversed(self.started):
            process.terminate()
        for process in reversed(self.started):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def study(out, *options):
    return subprocess.Popen([str(PROGRAM), "study", str(out.parent / "small.yaml"), "--out", str(out), *options],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def steps(out):
    return sum(len(f.read_text().splitlines()) for f in out.glob("runs/*/metrics.jsonl"))


def finish(process, code=0, seconds=300):
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # its runs end
        process.communicate()
        raise
    if process.returncode != code:
        fail(f"exit code {process.returncode}, not {code}:\n{output}")
    return output


def check_same(a, b):
    runs = sorted(f.name for f in a.glob("runs/*") if f.is_dir())
    if len(runs) != 6:
        fail(f"the study has the runs {runs}")
    for run in runs:
        if (a / "runs" / run / "metrics.jsonl").read_bytes() != (b / "runs" / run / "metrics.jsonl").read_bytes():
            fail(f"{run} has other records")
    first, second = (json.loads((f / "summary.json").read_text()) for f in (a, b))
    if first["finished"] != 6 or second["finished"] != 6:
        fail("not all runs have finished")


def show_study(folder, slurm):
    (folder / "small.yaml").write_text(STUDY)
    local, cluster = folder / "local", folder / "cluster"
    finish(study(local, "--jobs", "2"))
    process = study(cluster, "--launcher", "slurm")
    wait_for(lambda: steps(cluster) > 150, "steps of the first jobs")
    status = finish(study(cluster, "--status"))
    if "running" not in status or ", job " not in status:
        fail(f"--status shows nothing that runs:\n{status}")
    slurm.node("n1", "DOWN")
    before = steps(cluster)
    wait_for(lambda: steps(cluster) > before + 250, "steps on the other node")
    slurm.node("n1", "RESUME")
    process.send_signal(signal.SIGINT)
    finish(process, 130)
    wait_for(lambda: not slurm.ask("squeue", "-h").strip(), "an empty queue")
    process = study(cluster, "--launcher", "slurm")
    before = steps(cluster)
    wait_for(lambda: steps(cluster) > before + 150, "steps after going on")
    process.kill()  # the jobs stay, and are found again
    process.wait()
    finish(study(cluster, "--launcher", "slurm"))
    check_same(local, cluster)


def records(folder):
    path = folder / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def train(launcher, *options):
    return subprocess.Popen([*launcher, str(PROGRAM), "train", *map(str, options)], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def rank_process(folder, rank):
    """The process of a rank started by srun in a run's folder."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder).encode() in (entry / "cmdline").read_bytes() and \
                    f"PMIX_RANK={rank}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                return int(entry.name)
        except OSError:
            pass
    return fail(f"no process of rank {rank}")


def show_ranks(folder, slurm):
    """Two ranks by srun: the bits of one; the signal before a time limit saves; if one rank dies all end."""
    srun = ["srun", "--mpi=pmix", "--nodes=1", "--ntasks=2", "--overcommit", "--kill-on-bad-exit=1"]
    steps_of_all = ["--steps", 3000, "--stop-step", 40]
    finish(train([], "--out", folder / "one", *TRAIN, *steps_of_all, "--accumulate", 2))
    finish(train(srun, "--out", folder / "ranks", *TRAIN, *steps_of_all))
    if records(folder / "one") != records(folder / "ranks"):
        fail("ranks by srun have other records than one")
    process = train(srun, "--resume", folder / "ranks", "--stop-step", 0)
    wait_for(lambda: len(records(folder / "ranks")) > 43, "steps after going on")
    subprocess.run(["scancel", "--signal=USR1", slurm.ask("squeue", "-h", "-o", "%A").split()[0]], check=True)
    finish(process, 128 + signal.SIGUSR1)
    last = max((folder / "ranks/checkpoints").glob("step-*"))
    if int(last.name[5:]) != len(records(folder / "ranks")):
        fail(f"the last checkpoint is {last.name} of {len(records(folder / 'ranks'))} steps")
    process = train(srun, "--resume", folder / "ranks", "--stop-step", 0)
    wait_for(lambda: len(records(folder / "ranks")) > int(last.name[5:]) + 3, "steps after the signal")
    os.kill(rank_process(folder / "ranks", 1), signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    if process.returncode == 0 or "task" not in output:
        fail(f"a rank was killed: exit code {process.returncode}\n{output}")


def show(folder):
    slurm = Cluster(folder)
    try:
        slurm.begin()
        show_ranks(folder, slurm)
        show_study(folder, slurm)
    finally:
        subprocess.run(["scancel", "--user=root"], check=False)
        slurm.stop()


def main():
    needed = ("munged", "slurmctld", "slurmd", "sbatch")
    if os.getuid() != 0 or not all(map(shutil.which, needed)):
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="softrnn_slurm", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        try:
            show(Path(folder))
        except SystemExit:
            for log in sorted(Path(folder).glob("*.log")) + sorted(Path(folder).glob("*.output")) + \
                    sorted(Path(folder).glob("cluster/runs/*.log")):
                print(f"== {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]))
            raise
    print("ranks by srun have the records of one, a study by array jobs those of a local one")


main()
