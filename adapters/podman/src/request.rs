//! The request for one container: libpod's `SpecGenerator`. Everything that a sandbox must have is
//! said, nothing is left to the engine's defaults.

use mcp_forge_engine::{
    Able, Base, Bind, CPU_PERIOD, LABEL_INSTANCE, LABEL_OWNER, LABEL_SANDBOX, LINGER, OF_ENGINES,
    int, rlimits,
};
use mcp_forge_ports::vocabulary::{ResourceLimits, SandboxSpec};
use mcp_forge_presentation::{ENVIRONMENT, FORGE, HOST_NAME, MASKED, USER};
use serde_json::{Map, Value, json};

/// Processes and threads of a user namespace's user, where the control group bounds them: libpod's own
/// default cannot be set everywhere.
const PROCESSES: u64 = 4096;

/// The same for every container of one runtime.
pub(crate) struct Common {
    pub(crate) instance: String,
    pub(crate) owner: String,
    /// Path of the seccomp profile.
    pub(crate) seccomp: String,
    pub(crate) able: Able,
    /// The ids of the user namespace: the first one as the engine numbers them, and how many.
    pub(crate) ids: (u32, u32),
}

impl Common {
    fn mounts(binds: &[Bind], limits: &ResourceLimits) -> Vec<Value> {
        // What lies on a mount of its own below does not come along: it would be writable.
        let binds = binds.iter().map(|Bind { source, target }| {
            json!({
                "type": "bind",
                "source": source,
                "destination": target,
                "options": ["bind", "ro", "nosuid", "nodev", "rprivate"],
            })
        });
        let tmpfs = [
            ("/tmp", limits.tmp_bytes, "exec", "mode=1777"),
            ("/dev/shm", limits.tmp_bytes, "noexec", "mode=1777"),
            // libpod takes no owner: nobody else is there.
            ("/workspace", limits.workspace_bytes, "exec", "mode=0777"),
        ]
        .map(|(path, bytes, exec, mode)| {
            json!({
                "type": "tmpfs",
                "source": "tmpfs",
                "destination": path,
                "options": ["rw", "nosuid", "nodev", exec, format!("size={bytes}"), mode],
            })
        });
        binds.chain(tmpfs).collect()
    }

    fn resources(&self, limits: &ResourceLimits) -> Value {
        let mut resources = Map::new();
        let memory = int(limits.memory_bytes);
        let all = [
            (
                self.able.memory,
                "memory",
                json!({"limit": memory, "swap": memory}),
            ),
            (
                self.able.cpu,
                "cpu",
                json!({"quota": int(limits.cpu_quota), "period": CPU_PERIOD}),
            ),
            (self.able.pids, "pids", json!({"limit": int(limits.pids)})),
        ];
        for (able, name, value) in all {
            if able {
                resources.insert(name.to_owned(), value);
            }
        }
        resources.into()
    }

    /// The container of a sandbox.
    pub(crate) fn container(&self, name: &str, spec: &SandboxSpec, base: &Base) -> Value {
        let limits = &spec.limits;
        let private = json!({"nsmode": "private"});
        let none = json!({"nsmode": "none"});
        let (first, count) = self.ids;
        let map = json!([{"container_id": 0, "host_id": first, "size": count}]);
        let environment: Map<String, Value> = ENVIRONMENT
            .iter()
            .filter_map(|variable| variable.split_once('='))
            .chain([LINGER])
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        // Without a control group it is all that there is.
        let processes = match self.able.pids {
            true => limits.pids.saturating_add(1).max(PROCESSES),
            false => limits.pids,
        };
        let processes = ("nproc", int(processes));
        let rlimits: Vec<Value> = rlimits(limits)
            .into_iter()
            .chain([processes])
            .map(|(name, value)| json!({"type": name, "soft": value, "hard": value}))
            .collect();
        let mask: Vec<&str> = MASKED.into_iter().chain(OF_ENGINES).collect();
        json!({
            "name": name,
            "image": base.image,
            "image_volume_mode": "ignore",
            "command": [format!("{FORGE}/agent")],
            "entrypoint": [],
            "work_dir": "/workspace",
            "create_working_dir": false,
            "user": format!("{USER}:{USER}"),
            "groups": [],
            "hostname": HOST_NAME,
            "env": environment,
            "env_host": false,
            "httpproxy": false,
            "unsetenvall": true,
            "stdin": true,
            "terminal": false,
            "init": false,
            // Whoever stops it by hand does not wait for what process 1 does not get.
            "stop_signal": 9,
            "systemd": "false",
            "sdnotifyMode": "ignore",
            "privileged": false,
            "cap_add": [],
            "cap_drop": ["ALL"],
            "no_new_privileges": true,
            "seccomp_profile_path": self.seccomp,
            "read_only_filesystem": true,
            "mask": mask,
            "mounts": Self::mounts(&base.binds, limits),
            "volumes": [],
            "devices": [],
            "use_image_hosts": true,
            "use_image_resolve_conf": true,
            "manage_password": false,
            "userns": private,
            "idmappings": {"UIDMap": map, "GIDMap": map},
            "pidns": private,
            "utsns": private,
            "cgroupns": private,
            "netns": none,
            // A namespace of its own, without the engine's /dev/shm.
            "ipcns": none,
            // Engines let everybody listen on low ports.
            "sysctl": {"net.ipv4.ip_unprivileged_port_start": "1024"},
            "resource_limits": self.resources(limits),
            "r_limits": rlimits,
            "log_configuration": {"driver": "none"},
            "restart_policy": "no",
            "remove": false,
            // Nothing of it outlives the host.
            "volatile": true,
            "labels": {
                LABEL_INSTANCE: self.instance,
                LABEL_OWNER: self.owner,
                LABEL_SANDBOX: spec.id.0,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mcp_forge_ports::vocabulary::{SandboxId, SandboxRoot};

    use super::*;

    fn request(able: Able) -> Value {
        let common = Common {
            instance: "i".to_owned(),
            owner: "o".to_owned(),
            seccomp: "/cache/seccomp.json".to_owned(),
            able,
            ids: (1, 65_536),
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
            image: "localhost/mcp-forge/sandbox:0".to_owned(),
            binds: vec![Bind {
                source: "/images/1d/usr".to_owned(),
                target: "/usr".to_owned(),
            }],
        };
        common.container("mcp-forge-run-1", &spec, &base)
    }

    #[test]
    fn every_field_of_a_sandbox_is_said() {
        let able = Able {
            memory: true,
            swap: true,
            cpu: true,
            pids: true,
            own_users: true,
        };
        insta::assert_json_snapshot!(request(able));
    }

    #[test]
    fn only_limits_that_the_engine_has_are_asked_for() {
        let able = Able {
            memory: true,
            swap: true,
            cpu: false,
            pids: false,
            own_users: true,
        };
        let expected = json!({"memory": {"limit": 536_870_912, "swap": 536_870_912}});
        let request = request(able);
        assert_eq!(request["resource_limits"], expected);
        let processes = json!({"type": "nproc", "soft": 100, "hard": 100});
        assert_eq!(request["r_limits"][5], processes);
    }
}
