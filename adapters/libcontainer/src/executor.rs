//! The last step inside a container, in libcontainer's own process: takes the system calls away
//! and becomes the agent.
//!
//! libcontainer could load a filter too, but compiles it anew for each container and ignores when
//! the kernel refuses no_new_privs.

use std::collections::HashMap;
use std::ffi::CString;

use libcontainer::workload::{
    Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError,
};
use oci_spec::runtime::Spec;

use crate::seccomp::Filter;
use crate::sys;

/// Starts the program of the specification under a filter.
#[derive(Clone)]
pub(crate) struct Confined {
    filter: Filter,
}

impl Confined {
    /// An executor for this filter.
    pub(crate) fn new(filter: Filter) -> Self {
        Self { filter }
    }
}

/// What to execute; the environment is the specification's and nothing else.
fn program(spec: &Spec) -> Option<(Vec<CString>, Vec<CString>)> {
    let process = spec.process().as_ref()?;
    let terminated = |texts: &[String]| {
        texts
            .iter()
            .map(|text| CString::new(text.as_bytes()).ok())
            .collect::<Option<Vec<_>>>()
    };
    let arguments = terminated(process.args().as_deref()?)?;
    let environment = terminated(process.env().as_deref().unwrap_or_default())?;
    (!arguments.is_empty()).then_some((arguments, environment))
}

impl Executor for Confined {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let (arguments, environment) = program(spec).ok_or(ExecutorError::InvalidArg)?;
        let failed = |what: &str, e: std::io::Error| ExecutorError::Other(format!("{what}: {e}"));
        if !nix::sys::prctl::get_no_new_privs().map_err(|e| failed("no_new_privs", e.into()))? {
            return Err(ExecutorError::Other("no_new_privs is not set".to_owned()));
        }
        sys::load_filter(self.filter.program()).map_err(|e| failed("seccomp", e))?;
        let Err(e) = nix::unistd::execve(&arguments[0], &arguments, &environment);
        Err(failed("execve", e.into()))
    }

    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        program(spec).map(drop).ok_or_else(|| {
            ExecutorValidationError::ArgValidationError("no program, or a NUL in it".to_owned())
        })
    }

    /// The environment goes to execve(2); the one of this process is not used any more.
    fn setup_envs(&self, _: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }
}
