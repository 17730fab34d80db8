-- Rules of three sites; the partition says whose they are.
function slurm_job_submit(job, part, uid)
  if job.partition == "lab" and (job.account == nil or job.account == "") then
    slurm.log_user("site A: no account, write --account=PROJECT")
    return slurm.ERROR
  end
  if job.partition == "shared" and (job.shared == 0) then
    slurm.log_user("site B: nodes are shared, jobs with --exclusive are refused")
    return slurm.ERROR
  end
  if job.partition == "pods" and not string.find(job.script or "", "%-%-container%-image=") then
    slurm.log_user("site C: software runs in containers only (--container-image)")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_job_modify(job, rec, part, uid) return slurm.SUCCESS end
slurm.log_info("rules loaded")
return slurm.SUCCESS
