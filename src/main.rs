//! The program: command line, configuration, and the one place where adapters are chosen.
//!
//! It holds no rule of its own: what may run is the domain's, how it runs the adapters'.

mod automatic;
mod cli;
mod commands;
mod compose;
mod settings;
mod telemetry;
mod world;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // Before any thread: the helper process of the embedded runtime is this program too.
    if let Some(code) = compose::helper(std::env::args_os()) {
        return code;
    }
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(told) => {
            // Who wants JSON gets it for wrong options too.
            if told.use_stderr() && std::env::args_os().any(|argument| argument == "--json") {
                let error = anyhow::anyhow!("{}", told.render().to_string().trim_end());
                let _ = commands::print(&commands::error_json(&error));
            }
            let shown = told.print();
            // 2 would pass for a program's own status.
            return match shown {
                Ok(()) if !told.use_stderr() => ExitCode::SUCCESS,
                _ => ExitCode::from(commands::FAILED),
            };
        }
    };
    let wants_json = match &cli.command {
        cli::Command::Run(run) => run.json,
        cli::Command::Doctor(doctor) => doctor.json,
        _ => false,
    };
    let serves = matches!(cli.command, cli::Command::Serve(_));
    let _log = telemetry::start(cli.log_level, cli.log_format, serves);
    match compose::check_transport(&cli.command).and_then(|()| commands::dispatch(cli)) {
        Ok(code) => code,
        Err(error) => {
            if wants_json {
                // It is on standard error as well, and the status is the same.
                let _ = commands::print(&commands::error_json(&error));
            }
            commands::complain(&error);
            ExitCode::from(commands::FAILED)
        }
    }
}
