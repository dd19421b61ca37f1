//! How a model is used where the store's name for it says so, as a Modelfile does: a system prompt, a chat template,
//! settings, and a conversation that every conversation starts with. Requests go before it.

use super::adapters::Adapted;
use super::chat_input::ChatInput;
use super::sampling::SamplingParams;
use hub::{Modelfile, Named};
use serde_json::{Map, Value};
use text::Message;

/// Nothing, unless a name says otherwise.
#[derive(Clone, Debug, Default)]
pub struct Preset {
    pub system: Option<String>,
    pub template: Option<String>,
    pub license: Option<String>,
    pub parameters: Map<String, Value>,
    pub messages: Vec<Message>,
    pub params: SamplingParams,
    /// The recipe that would make it.
    pub modelfile: String,
    /// What changes the model, where the name stands for an adapter.
    pub adapted: Option<Adapted>,
}

impl Preset {
    pub fn of(named: &Named) -> Self {
        let parameters: Map<String, Value> =
            named.parameters.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        Self {
            system: named.system.clone(),
            template: named.template.clone(),
            license: named.license.clone(),
            messages: named.messages.iter().map(|turn| Message::new(&*turn.role, &*turn.content)).collect(),
            // The store has checked that numbers are numbers.
            params: serde_json::from_value(parameters.clone().into()).unwrap_or_default(),
            parameters,
            modelfile: Modelfile::of(named).to_string(),
            adapted: None,
        }
    }

    /// The request with what it leaves open filled in.
    pub fn complete(&self, input: &mut ChatInput) {
        input.params = input.params.or(&self.params);
        if input.stop.is_empty() {
            input.stop = self.params.stops().unwrap_or_default();
        }
        let has_system = input.messages.first().is_some_and(|message| message.role == "system");
        let at = usize::from(has_system);
        input.messages.splice(at..at, self.messages.iter().cloned());
        if let Some(system) = self.system.as_ref().filter(|_| !has_system) {
            input.messages.insert(0, Message::new("system", system.as_str()));
        }
    }

    /// The settings as Ollama shows them: one on each line.
    pub fn parameter_lines(&self) -> String {
        let mut lines = Vec::new();
        for (name, value) in &self.parameters {
            let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
            lines.extend(values.iter().map(|value| format!("{name:<30} {value}")));
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_before_the_preset() {
        let recipe = "FROM x\nSYSTEM be brief\nPARAMETER temperature 0.5\nPARAMETER top_k 7\nPARAMETER stop END\n\
                      MESSAGE user hello\nMESSAGE assistant ahoy";
        let named = Modelfile::parse(recipe).unwrap().over(&Named::default());
        let preset = Preset::of(&named);
        let params = SamplingParams { temperature: Some(1.0), ..SamplingParams::default() };
        let mut input = ChatInput { messages: vec![Message::new("user", "hi")], params, ..ChatInput::default() };
        preset.complete(&mut input);
        let said: Vec<(&str, &str)> =
            input.messages.iter().map(|message| (message.role.as_str(), message.content.as_str())).collect();
        assert_eq!(said, [("system", "be brief"), ("user", "hello"), ("assistant", "ahoy"), ("user", "hi")]);
        assert_eq!(
            (input.params.temperature, input.params.top_k, input.stop),
            (Some(1.0), Some(7), vec!["END".to_owned()])
        );
        let mut input = ChatInput { messages: vec![Message::new("system", "own")], ..ChatInput::default() };
        preset.complete(&mut input);
        assert_eq!((input.messages[0].content.as_str(), input.messages.len()), ("own", 3));
        assert!(preset.parameter_lines().contains("temperature"), "{}", preset.parameter_lines());
    }
}
