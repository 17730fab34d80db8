#!/usr/bin/env bash
# One Slurm job. What sbatch reads from the environment holds too, such as SBATCH_PARTITION and
# SBATCH_ACCOUNT. A requeued job goes on in its run folder and appends to its logs.
takes="--nodes --gpus --np --cpus --time --container"
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

nodes=${nodes:-1}
if [[ -n $np ]]; then
    processes=$np
    tasks="#SBATCH --ntasks=$np"
else
    gpus=${gpus:-8}
    processes=$((nodes * gpus))
    tasks="#SBATCH --ntasks-per-node=$gpus
#SBATCH --gpus-per-node=$gpus"
fi

share=--exclusive
if [[ -n $cpus ]]; then share=--cpus-per-task=$cpus; fi

# A requeue keeps the job's number, %j.
folder=${run_dir:-runs/$recipe/slurm-%j}
log_folder=$(dirname "$folder")
given=$(printf %q "$folder")

# Bound to one core each, processes would have one thread; so they may use all cores that the job has
# on their machine, and lsgd divides its threads among them.
srun=(srun --cpu-bind=none)
if [[ -n $cpus ]]; then srun+=("--cpus-per-task=$cpus"); fi
# When one has died, the others have 15 s to say why and to leave.
srun+=(--kill-on-bad-exit=0 --wait=15 --open-mode=append)
if [[ -n $container ]]; then
    mounts=$PWD:$PWD
    for word in ${words[@]+"${words[@]}"} ${LSGD_DATA:+"data.root=$LSGD_DATA"}; do
        if [[ $word == data.root=/* ]]; then mounts+=,${word#*=}:${word#*=}; fi
    done
    srun+=("--container-image=$container" "--container-mounts=$mounts" "--container-workdir=$PWD")
fi
train=$(printf ' %q' "$python" "${run[@]}")
if [[ -z $run_dir ]]; then train+=" \"run_dir=\$run_dir\""; fi

submit sbatch "on a machine without Slurm, take local.sh, mpirun.sh or torchrun.sh" "#!/usr/bin/env bash
#SBATCH --job-name=$recipe
#SBATCH --nodes=$nodes
$tasks
#SBATCH $share
${time:+#SBATCH --time=$time
}#SBATCH --output=$folder.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR2@120

run_dir=${given//slurm-%j/slurm-\$SLURM_JOB_ID}
echo \"job \$SLURM_JOB_ID, start \$((\${SLURM_RESTART_COUNT:-0} + 1)), on \$SLURM_JOB_NODELIST\"
mkdir -p \"\$run_dir/logs\"
$(printf '%q ' "${srun[@]}")\"--output=\$run_dir/logs/rank%t.log\" \\
   $train
code=\$?
# Stopped by a signal, such as USR2 before the time limit, with all its work saved: to be continued.
if ((code == 75)); then scontrol requeue \"\$SLURM_JOB_ID\"; fi
exit \$code" sbatch
