#!/usr/bin/env bash
# One Kubeflow job: an MPIJob (v1) or a PyTorchJob, from its template in k8s/.
takes="--kind --image --claim --nodes --gpus --name"
source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

[[ $kind == mpijob || $kind == pytorchjob ]] ||
    refuse "--kind is ${kind:-missing}, but must be mpijob (Horovod) or pytorchjob (torch.distributed)."
[[ -n $image ]] || refuse "--image is missing: the container image that has lsgd installed."
[[ -n $claim ]] || refuse "--claim is missing: a PersistentVolumeClaim, so that a restarted job finds its run."
nodes=${nodes:-1}
gpus=${gpus:-8}
processes=$((nodes * gpus))

# Kubernetes' names have no underscores and no capitals.
name=${name:-$(tr '[:upper:]_' '[:lower:]-' <<<"$recipe")}
[[ $name =~ ^[a-z]([-a-z0-9]*[a-z0-9])?$ ]] ||
    refuse "--name is $name, but must be of small letters, digits and dashes."
if [[ -z $run_dir ]]; then
    run_dir=/lsgd/runs/$name
    run+=("run_dir=$run_dir")
fi

case $kind in
    mpijob) command=(mpirun --bind-to none --tag-output -np "$processes" "$python" "${run[@]}") ;;
    # Where to meet and how many pods there are it reads from PET_*, which the operator sets.
    pytorchjob) command=(torchrun --log-dir "$run_dir/logs" --tee 3 "${run[@]}") ;;
esac
# As a list of JSON texts; Kubernetes would take $(NAME) for a variable.
list=
for word in "${command[@]}"; do
    word=${word//\\/\\\\}
    word=${word//\"/\\\"}
    list+=", \"${word//\$(/"\$\$("}\""
done

manifest=$(<"$launch/k8s/$kind.yaml")
for field in name image claim nodes gpus; do
    manifest=${manifest//"{{$field}}"/"${!field}"}
done
manifest=${manifest//'{{workers}}'/$((nodes - 1))}
manifest=${manifest//'{{command}}'/"[${list#, }]"}
submit kubectl "or save what --print shows and give it to whoever runs the cluster" "$manifest" \
    kubectl create -f -
