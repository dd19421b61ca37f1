//! Opening and planning: what a folder of safetensors says about itself, what fits, and what is refused.

use crate::folder;
use rocinante::{Device, Error, Message, Model, ModelFiles, Options, Scheduling, Workload};

fn on_cpu() -> Options {
    Options { device: Device::Cpu, n_threads: Some(1), ..Options::default() }
}

#[test]
fn a_folder_keeps_its_format_and_its_size() {
    let home = tempfile::tempdir().unwrap();
    let path = folder::write(home.path(), Some(folder::TOOLS_TEMPLATE), |_| ());
    let files = ModelFiles::open(&path).unwrap();
    let info = files.info().unwrap();
    assert_eq!((info.architecture.as_str(), info.quantization.as_str()), ("llama", "F32"));
    assert_eq!(info.file_bytes, folder::weights_bytes(&path));
    assert_eq!(rocinante::stored_bytes(&path), folder::weights_bytes(&path));
    let template = files.template(&files.tokenizer().unwrap()).unwrap();
    assert!(template.knows_tools() && template.format().has_reasoning() && template.format().has_tools());
    assert!(!template.is_missing() && !template.is_base());
}

/// No template and no marks of ChatML in the vocabulary: text to continue, with the BOS that the vocabulary has.
#[test]
fn a_base_model_continues_text() {
    let home = tempfile::tempdir().unwrap();
    let path = folder::write(home.path(), None, |_| ());
    let model = Model::open_with(&path, &on_cpu()).unwrap();
    assert!(model.template().is_base() && model.template().source().is_none());
    let prompt = model.chat_prompt(&[Message::new("user", "The 12 words")]).unwrap();
    assert_eq!(prompt.text, "The 12 words");
    assert_eq!(prompt.tokens, model.encode_raw("The 12 words"));
}

#[test]
fn a_plan_says_what_is_taken_before_anything_is() {
    let home = tempfile::tempdir().unwrap();
    let files = ModelFiles::open(folder::write(home.path(), None, |_| ())).unwrap();
    let plan = files.plan(&on_cpu()).unwrap();
    assert_eq!((plan.n_ctx(), plan.n_ctx_train, plan.n_pool_tokens()), (1024, 1024, 1024));
    assert_eq!((plan.schedule.max_running, plan.schedule.max_batch_tokens), (1, 512));
    assert!(plan.lines().contains("memory plan for cpu") && plan.lines().contains("context of 1024, f16"));
    let server = Options { workload: Workload::Server(Scheduling::default()), ..on_cpu() };
    let plan = files.plan(&server).unwrap();
    assert_eq!((plan.schedule.max_running, plan.schedule.prefill_chunk), (64, 128));
    assert_eq!(plan.n_pool_tokens(), 8 * 1024, "eight contexts");
    let scheduling = Scheduling { max_running: Some(3), kv_tokens: Some(1500), ..Scheduling::default() };
    let plan = files.plan(&Options { workload: Workload::Server(scheduling), ..server }).unwrap();
    assert_eq!((plan.schedule.max_running, plan.n_pool_tokens()), (3, 1504), "in whole blocks");
}

#[test]
fn what_cannot_be_is_an_error_of_its_own() {
    let home = tempfile::tempdir().unwrap();
    let path = folder::write(home.path(), None, |config| config["max_position_embeddings"] = (1u64 << 31).into());
    let files = ModelFiles::open(&path).unwrap();
    let with_context = |n_ctx| files.plan(&Options { context: Some(n_ctx), ..on_cpu() });
    match with_context(1 << 31) {
        Err(Error::DoesNotFit(why)) => assert_eq!(why.n_ctx, 1 << 31),
        other => panic!("{other:?}"),
    }
    let too_long = with_context((1 << 31) + 1);
    assert!(matches!(too_long, Err(Error::ContextTooLong { n_ctx_train, .. }) if n_ctx_train == 1 << 31));
    assert!(matches!(Model::open(home.path().join("nothing.gguf")), Err(Error::File(_))));
    std::fs::remove_file(path.join("tokenizer.json")).unwrap();
    assert!(matches!(Model::open_with(&path, &on_cpu()), Err(Error::NoVocabulary(_))));
}
