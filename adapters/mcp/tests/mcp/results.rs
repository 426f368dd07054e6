//! The exact JSON of results, and the text beside it.

use mcp_forge_mcp::wire;
use mcp_forge_ports::vocabulary::{
    EndedBy, ExecutionOutcome, OutputBlock, OutputFile, OutputStream, Picture, ProgramError, RunLog,
};
use serde_json::{Value, json};

use crate::fakes::{Scripted, completed, ended, server};
use crate::raw::RawClient;

async fn result_of(outcome: ExecutionOutcome) -> Value {
    let structured = wire::run_result(&outcome, wire::Pictures::Linked);
    let success = outcome.success();
    let mut client = RawClient::initialized(server(Scripted::answering(Ok(outcome)))).await;
    let answer = client.call(json!({"code": "1"})).await;
    let result = answer["result"].clone();
    assert_eq!(result["structuredContent"], structured);
    assert_eq!(result["isError"], !success);
    assert_eq!(result["content"].as_array().unwrap().len(), 1);
    assert_eq!(result["content"][0]["type"], "text");
    result
}

async fn text_of(outcome: ExecutionOutcome) -> String {
    result_of(outcome).await["content"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn failed() -> ExecutionOutcome {
    let error = ProgramError {
        name: "ZeroDivisionError".to_owned(),
        message: "division by zero".to_owned(),
        traceback: "Traceback (most recent call last):\n  File \"<code>\", line 1, in <module>\n\
                    ZeroDivisionError: division by zero\n"
            .to_owned(),
    };
    let mut outcome = ended(EndedBy::Error);
    outcome.exit_code = Some(1);
    outcome.blocks.push(OutputBlock::Error(error.clone()));
    outcome.error = Some(error);
    outcome
}

#[tokio::test]
async fn a_completed_run() {
    let result = result_of(completed()).await;
    insta::with_settings!({sort_maps => true, snapshot_path => "../snapshots"}, {
        insta::assert_json_snapshot!("completed", result);
    });
}

#[tokio::test]
async fn a_failed_run() {
    let result = result_of(failed()).await;
    insta::with_settings!({sort_maps => true, snapshot_path => "../snapshots"}, {
        insta::assert_json_snapshot!("failed", result);
    });
}

#[tokio::test]
async fn a_run_on_a_host_that_enforces_little() {
    let mut outcome = ended(EndedBy::Crashed);
    outcome.signal = Some("SIGSEGV".to_owned());
    outcome.stdout_truncated = true;
    outcome.stderr = "na\u{fffd}\n".to_owned();
    outcome.stderr_not_utf8 = true;
    outcome.limits.effective.memory_bytes = None;
    outcome.limits.effective.weak = vec!["memory: cgroup v1 is not delegated".to_owned()];
    outcome.runtime.image_digest = Some("sha256:ab".to_owned());
    let result = result_of(outcome).await;
    insta::with_settings!({sort_maps => true, snapshot_path => "../snapshots"}, {
        insta::assert_json_snapshot!("weak", result);
    });
}

#[tokio::test]
async fn the_last_line_says_why_and_what_to_do_next() {
    let mut told = Vec::new();
    for ended_by in [
        EndedBy::Error,
        EndedBy::Timeout,
        EndedBy::Cancelled,
        EndedBy::Oom,
        EndedBy::Pids,
        EndedBy::OutputLimit,
        EndedBy::Crashed,
        EndedBy::RuntimeLost,
    ] {
        let text = text_of(ended(ended_by)).await;
        let (first, last) = text.split_once('\n').unwrap();
        assert_eq!(first, "working");
        told.push(format!("{}: {last}", ended_by.as_str()));
    }
    insta::with_settings!({snapshot_path => "../snapshots"}, {
        insta::assert_snapshot!("endings", told.join("\n"));
    });
}

#[tokio::test]
async fn the_longest_timeout_is_not_to_be_raised() {
    let mut outcome = ended(EndedBy::Timeout);
    outcome.limits.requested.timeout = std::time::Duration::from_secs(300);
    let text = text_of(outcome).await;
    assert!(
        text.ends_with("This is the longest time allowed: split the work."),
        "{text}"
    );
}

#[tokio::test]
async fn the_text_holds_everything_the_program_wrote() {
    let mut outcome = failed();
    outcome.stdout = "no newline".to_owned();
    outcome.blocks = vec![OutputBlock::Stream {
        stream: OutputStream::Stdout,
        text: outcome.stdout.clone(),
    }];
    outcome.stdout_truncated = true;
    outcome.result_repr = Some("   a\n0  1".to_owned());
    outcome.stderr = "warning: x\n".to_owned();
    outcome.stderr_truncated = true;
    let text = text_of(outcome).await;
    insta::with_settings!({snapshot_path => "../snapshots"}, {
        insta::assert_snapshot!("text", text);
    });
}

#[tokio::test]
async fn a_traceback_that_was_printed_is_not_told_twice() {
    let mut outcome = failed();
    outcome.stderr = outcome.error.as_ref().unwrap().traceback.clone();
    let text = text_of(outcome).await;
    assert_eq!(text.matches("Traceback").count(), 1, "{text}");
}

#[tokio::test]
async fn who_lacks_a_package_is_told_that_none_can_be_installed() {
    for name in ["ModuleNotFoundError", "packageNotFoundError"] {
        let mut outcome = failed();
        outcome.error.as_mut().unwrap().name = name.to_owned();
        let text = text_of(outcome).await;
        let told = format!(
            "Failed: {name}. Packages cannot be installed here, for there is no network: use those \
             that there are."
        );
        assert!(text.ends_with(&told), "{text}");
    }
}

#[tokio::test]
async fn an_exit_status_is_told() {
    let mut outcome = ended(EndedBy::Error);
    outcome.exit_code = Some(3);
    let text = text_of(outcome).await;
    assert!(text.ends_with("Failed: exit status 3. Correct the program and run it again."));
}

#[tokio::test]
async fn silence_is_told() {
    let mut outcome = completed();
    outcome.stdout.clear();
    outcome.blocks.clear();
    outcome.result = None;
    outcome.result_repr = None;
    let text = text_of(outcome).await;
    assert!(text.contains("wrote nothing"), "{text}");
}

#[tokio::test]
async fn a_value_that_json_cannot_carry_is_told_in_print() {
    let mut outcome = completed();
    outcome.result = None;
    outcome.result_repr = Some("<object at 0x7f>".to_owned());
    outcome.blocks = vec![OutputBlock::Value {
        json: None,
        repr: "<object at 0x7f>".to_owned(),
    }];
    let result = result_of(outcome).await;
    assert_eq!(result["structuredContent"]["result"], Value::Null);
    assert_eq!(
        result["structuredContent"]["blocks"],
        json!([{"type": "value", "json": null, "repr": "<object at 0x7f>"}])
    );
    assert_eq!(result["content"][0]["text"], "Result: <object at 0x7f>");
}

fn picture(mime_type: &str, data: &[u8]) -> OutputBlock {
    OutputBlock::Image {
        picture: Picture {
            mime_type: mime_type.to_owned(),
            data: data.into(),
        },
        text: Some("<Figure>".to_owned()),
    }
}

#[tokio::test]
async fn what_a_program_showed_comes_in_order() {
    let mut outcome = completed();
    let stream = |text: &str| OutputBlock::Stream {
        stream: OutputStream::Stdout,
        text: text.to_owned(),
    };
    outcome.blocks = vec![
        stream("before"),
        picture("image/png", b"PNG"),
        picture("image/svg+xml", b"<svg/>"),
        OutputBlock::Image {
            picture: Picture {
                mime_type: "image/gif".to_owned(),
                data: b"GIF"[..].into(),
            },
            text: Some("<Image>\n[made smaller]".to_owned()),
        },
        OutputBlock::Html {
            html: "<table/>".to_owned(),
            text: Some("a table".to_owned()),
        },
        OutputBlock::Json {
            json: json!({"a": null}),
            text: None,
        },
        stream("after\n"),
        OutputBlock::Warning {
            text: "careful\n".to_owned(),
            call: Some("f()".to_owned()),
        },
    ];
    outcome.stderr = "careful\n".to_owned();
    outcome.result_repr = None;
    outcome.files = ["plots/a b.png", "huge.bin"]
        .map(|path| OutputFile {
            path: path.to_owned(),
            size: 7,
            mime_type: "image/png".to_owned(),
            kept: path != "huge.bin",
        })
        .into();
    outcome.files_omitted = 2;
    outcome.log = Some(RunLog {
        bytes: 12,
        complete: true,
    });
    let mut client = RawClient::initialized(server(Scripted::answering(Ok(outcome)))).await;
    let answer = client.call(json!({"code": "1"})).await;
    let result = &answer["result"];
    insta::with_settings!({sort_maps => true, snapshot_path => "../snapshots"}, {
        insta::assert_json_snapshot!("rich", json!({
            "content": result["content"],
            "blocks": result["structuredContent"]["blocks"],
            "files": result["structuredContent"]["files"],
            "log": result["structuredContent"]["log"],
        }));
    });
}

#[tokio::test]
async fn many_pictures_are_contained_up_to_a_bound_and_named_beyond() {
    let mut outcome = completed();
    outcome.blocks = vec![picture("image/png", &[0; 2 << 20]); 5];
    let mut client = RawClient::initialized(server(Scripted::answering(Ok(outcome)))).await;
    let answer = client.call(json!({"code": "1"})).await;
    let content = answer["result"]["content"].as_array().unwrap();
    let pictures = content.iter().filter(|block| block["type"] == "image");
    assert_eq!(pictures.count(), 3);
    let text = content.last().unwrap()["text"].as_str().unwrap();
    assert!(text.contains("mcp://forge/runs/run-1/images/3"), "{text}");
    assert!(text.contains("mcp://forge/runs/run-1/images/4"), "{text}");
}

#[tokio::test]
async fn a_model_gets_the_beginning_and_the_end_of_a_long_text() {
    let mut outcome = completed();
    let line = |n: usize| format!("line {n} é\n");
    let written: String = (0..50_000).map(line).collect();
    let stream = |text: &str| OutputBlock::Stream {
        stream: OutputStream::Stdout,
        text: text.to_owned(),
    };
    outcome.blocks = vec![
        stream(&written[..300_000]),
        picture("image/png", b"PNG"),
        stream(&written[300_000..]),
    ];
    outcome.stdout = written.clone();
    outcome.ended_by = EndedBy::Error;
    outcome.log = Some(RunLog {
        bytes: 1,
        complete: true,
    });
    let mut client = RawClient::initialized(server(Scripted::answering(Ok(outcome)))).await;
    let answer = client.call(json!({"code": "1"})).await;
    let result = &answer["result"];
    assert_eq!(result["structuredContent"]["stdout"], written);
    let content = result["content"].as_array().unwrap();
    let kinds: Vec<_> = content.iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["text", "image", "text"]);
    let texts: String = [0, 2]
        .map(|at| content[at]["text"].as_str().unwrap())
        .concat();
    assert!(
        (48 << 10..50 << 10).contains(&texts.len()),
        "{}",
        texts.len()
    );
    assert!(texts.starts_with("line 0 é\nline 1 é\n"));
    let told = " KiB are left out here: print less. More is in the structured content and in \
                mcp://forge/runs/run-1/log.)\n";
    assert_eq!(texts.matches(told).count(), 1);
    assert!(texts.contains("line 49999 é\n"));
    assert!(texts.ends_with("Correct the program and run it again."));
}
