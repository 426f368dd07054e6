//! The request for one container: everything that a sandbox must have is said, nothing is left to
//! the engine's defaults.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, ResourcesUlimits, RestartPolicy,
    RestartPolicyNameEnum,
};
use mcp_forge_engine::{
    Base, Bind, CPU_PERIOD, LABEL_INSTANCE, LABEL_OWNER, LABEL_SANDBOX, LINGER, OF_ENGINES, int,
    rlimits, tmpfs_inodes,
};
use mcp_forge_ports::vocabulary::{ResourceLimits, SandboxSpec};
use mcp_forge_presentation::{ENVIRONMENT, FORGE, HOST_NAME, MASKED, READ_ONLY, USER};

/// The same for every container of one runtime.
pub(crate) struct Common {
    pub(crate) instance: String,
    pub(crate) owner: String,
    pub(crate) seccomp: String,
    /// Whether the engine makes mounts below a bind read-only too (API 1.44).
    pub(crate) recursive_read_only: bool,
}

fn tmpfs(bytes: u64, options: &str) -> String {
    let inodes = tmpfs_inodes(bytes);
    format!("rw,nosuid,nodev,size={bytes},nr_inodes={inodes},{options}")
}

fn ulimits(limits: &ResourceLimits) -> Vec<ResourcesUlimits> {
    rlimits(limits)
        .map(|(name, value)| ResourcesUlimits {
            name: Some(name.to_owned()),
            soft: Some(value),
            hard: Some(value),
        })
        .into()
}

impl Common {
    fn mount(&self, bind: &Bind) -> Mount {
        Mount {
            target: Some(bind.target.clone()),
            source: Some(bind.source.clone()),
            typ: Some(MountType::BIND),
            read_only: Some(true),
            bind_options: Some(MountBindOptions {
                propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
                // What an older engine could not make read-only does not come along.
                non_recursive: Some(!self.recursive_read_only),
                read_only_force_recursive: self.recursive_read_only.then_some(true),
                ..MountBindOptions::default()
            }),
            ..Mount::default()
        }
    }

    /// The container of a sandbox.
    pub(crate) fn container(&self, spec: &SandboxSpec, base: &Base) -> ContainerCreateBody {
        let limits = &spec.limits;
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let masked = MASKED.iter().copied().chain(OF_ENGINES).map(str::to_owned);
        let linger = format!("{}={}", LINGER.0, LINGER.1);
        let environment = ENVIRONMENT.iter().map(ToString::to_string).chain([linger]);
        let host_config = HostConfig {
            memory: Some(int(limits.memory_bytes)),
            memory_swap: Some(int(limits.memory_bytes)),
            cpu_period: Some(CPU_PERIOD),
            cpu_quota: Some(int(limits.cpu_quota)),
            pids_limit: Some(int(limits.pids)),
            ulimits: Some(ulimits(limits)),
            oom_kill_disable: Some(false),
            tmpfs: Some(HashMap::from([
                ("/tmp".to_owned(), tmpfs(limits.tmp_bytes, "exec,mode=1777")),
                // The engine's own has no bound for empty files.
                (
                    "/dev/shm".to_owned(),
                    tmpfs(limits.tmp_bytes, "noexec,mode=1777"),
                ),
                (
                    "/workspace".to_owned(),
                    tmpfs(
                        limits.workspace_bytes,
                        &format!("exec,mode=0700,uid={USER},gid={USER}"),
                    ),
                ),
            ])),
            mounts: Some(base.binds.iter().map(|bind| self.mount(bind)).collect()),
            readonly_rootfs: Some(true),
            masked_paths: Some(masked.collect()),
            readonly_paths: Some(owned(&READ_ONLY)),
            privileged: Some(false),
            cap_drop: Some(owned(&["ALL"])),
            cap_add: Some(Vec::new()),
            security_opt: Some(vec![
                "no-new-privileges:true".to_owned(),
                format!("seccomp={}", self.seccomp),
            ]),
            network_mode: Some("none".to_owned()),
            // A namespace of its own, without the engine's /dev/shm.
            ipc_mode: Some("none".to_owned()),
            pid_mode: Some(String::new()),
            uts_mode: Some(String::new()),
            cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
            // Engines let everybody listen on low ports.
            sysctls: Some(HashMap::from([(
                "net.ipv4.ip_unprivileged_port_start".to_owned(),
                "1024".to_owned(),
            )])),
            devices: Some(Vec::new()),
            group_add: Some(Vec::new()),
            log_config: Some(HostConfigLogConfig {
                typ: Some("none".to_owned()),
                config: None,
            }),
            restart_policy: Some(RestartPolicy {
                name: Some(RestartPolicyNameEnum::NO),
                maximum_retry_count: None,
            }),
            auto_remove: Some(false),
            init: Some(false),
            ..HostConfig::default()
        };
        ContainerCreateBody {
            image: Some(base.image.clone()),
            hostname: Some(HOST_NAME.to_owned()),
            user: Some(format!("{USER}:{USER}")),
            cmd: Some(vec![format!("{FORGE}/agent")]),
            entrypoint: Some(Vec::new()),
            env: Some(environment.collect()),
            working_dir: Some("/workspace".to_owned()),
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(false),
            open_stdin: Some(true),
            stdin_once: Some(true),
            tty: Some(false),
            network_disabled: Some(true),
            labels: Some(HashMap::from([
                (LABEL_INSTANCE.to_owned(), self.instance.clone()),
                (LABEL_OWNER.to_owned(), self.owner.clone()),
                (LABEL_SANDBOX.to_owned(), spec.id.0.clone()),
            ])),
            host_config: Some(host_config),
            ..ContainerCreateBody::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mcp_forge_ports::vocabulary::{SandboxId, SandboxRoot};

    use super::*;

    #[test]
    fn every_field_of_a_sandbox_is_said() {
        let common = Common {
            instance: "i".to_owned(),
            owner: "o".to_owned(),
            seccomp: "{}".to_owned(),
            recursive_read_only: false,
        };
        let spec = SandboxSpec {
            id: SandboxId("run-1".to_owned()),
            root: SandboxRoot::Host,
            limits: ResourceLimits {
                memory_bytes: 512 << 20,
                cpu_quota: 50_000,
                pids: 100,
                descriptors: 256,
                tmp_bytes: 64 << 20,
                workspace_bytes: 1 << 30,
                timeout: Duration::from_secs(1),
            },
        };
        let base = Base {
            image: "mcp-forge/sandbox:0".to_owned(),
            binds: vec![Bind {
                source: "/images/1d/usr".to_owned(),
                target: "/usr".to_owned(),
            }],
        };
        // The order of hash maps is chance.
        let value = serde_json::to_value(common.container(&spec, &base)).unwrap();
        insta::with_settings!({sort_maps => true}, {
            insta::assert_json_snapshot!(value);
        });
    }
}
