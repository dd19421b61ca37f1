//! How each family writes its calls and its reasoning: rows of data, and which row a chat template belongs to.

use super::braced_call::QUOTE;
use super::channels::ChannelKind;

/// How a model writes: its reasoning, its calls.
#[derive(Clone, Debug, Default)]
pub struct AnswerFormat {
    /// The marks around reasoning.
    pub(crate) reasoning: Option<(&'static str, &'static str)>,
    pub(crate) tools: Option<&'static Syntax>,
    pub(crate) channels: Option<ChannelKind>,
    /// Marks that mean nothing to a reader.
    pub(crate) dropped: &'static [&'static str],
}

/// How a family writes calls.
#[derive(Debug)]
pub(crate) struct Syntax {
    pub name: &'static str,
    /// A template that holds all of these belongs to the family.
    pub signs: &'static [&'static str],
    /// The marks around all calls of an answer.
    pub section: Option<(&'static str, &'static str)>,
    /// The marks around one call. The first may be empty inside a section.
    pub call: (&'static str, &'static str),
    pub body: Body,
    /// A JSON object at the beginning of an answer is a call even without a mark.
    pub is_bare: bool,
    /// The tool that takes what is no JSON after the mark: a program.
    pub code: Option<&'static str>,
    /// What the model itself writes around a name and its arguments, where both are JSON.
    pub spelt: (&'static str, &'static str),
    /// The calls stand in a list.
    pub is_list: bool,
}

#[derive(Debug)]
pub(crate) enum Body {
    /// An object with a name and arguments, or a list of them.
    Json(&'static CallKeys),
    /// A name, one of these marks, and the arguments as JSON.
    Named(&'static [&'static str]),
    /// A list of Python calls.
    Python,
    /// A name and parameters in braces, with marks for quotes.
    Braced,
    Tagged(&'static Tags),
}

/// The keys of an object that is a call.
#[derive(Debug)]
pub(crate) struct CallKeys {
    pub name: &'static [&'static str],
    pub arguments: &'static [&'static str],
    pub id: &'static [&'static str],
}

/// The marks of a call written as tags.
#[derive(Debug)]
pub(crate) struct Tags {
    /// One of these ends the name.
    pub name_ends: &'static [&'static str],
    pub key: (&'static str, &'static str),
    pub value: (&'static str, &'static str),
    /// Ends the parameters.
    pub end: &'static str,
}

impl Tags {
    /// Whether what ended the name begins something else too.
    pub(crate) fn keeps_name_end(&self, mark: &str) -> bool {
        mark == self.key.0 || mark == self.end
    }
}

pub(crate) const KEYS: CallKeys = CallKeys {
    name: &["name", "tool_name"],
    arguments: &["arguments", "parameters", "args"],
    id: &["id", "tool_call_id"],
};

const BASE: Syntax = Syntax {
    name: "",
    signs: &[],
    section: None,
    call: ("", ""),
    body: Body::Json(&KEYS),
    is_bare: false,
    code: None,
    spelt: ("{\"name\": ", ", \"arguments\": "),
    is_list: false,
};

const TOOL_NAME: (&str, &str) = ("{\"tool_name\": ", ", \"parameters\": ");

/// Between an id and a name (Solar Open).
pub(crate) const NAME: &str = "<|tool_call:name|>";

/// DeepSeek V3.2's and V4's. Behind a parameter's name stands whether its value is a string, which the tool's schema says
/// too.
const DSML: Tags = Tags {
    name_ends: &["\">"],
    key: ("<｜DSML｜parameter name=\"", "\""),
    value: (">", "</｜DSML｜parameter>"),
    end: "</｜DSML｜invoke>",
};

const PARAMETERS: Tags =
    Tags { name_ends: &[">"], key: ("<parameter=", ">"), value: ("", "</parameter>"), end: "</function>" };

/// Families in the order they are tried: the more particular first.
pub(crate) const SYNTAXES: &[Syntax] = &[
    Syntax {
        name: "deepseek-v3",
        signs: &["<｜tool▁sep｜>", "```json"],
        section: Some(("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),
        call: ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "```<｜tool▁call▁end｜>"),
        body: Body::Named(&["\n```json\n"]),
        ..BASE
    },
    Syntax {
        name: "deepseek-v3.1",
        signs: &["<｜tool▁sep｜>"],
        section: Some(("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),
        call: ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        body: Body::Named(&["<｜tool▁sep｜>"]),
        ..BASE
    },
    Syntax {
        name: "kimi-k2",
        signs: &["<|tool_calls_section_begin|>"],
        section: Some(("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")),
        call: ("<|tool_call_begin|>", "<|tool_call_end|>"),
        body: Body::Named(&["<|tool_call_argument_begin|>"]),
        ..BASE
    },
    Syntax {
        name: "glm-4",
        signs: &["<arg_key>"],
        call: ("<tool_call>", "</tool_call>"),
        body: Body::Tagged(&Tags {
            name_ends: &["\n", "<arg_key>", "</tool_call>"],
            key: ("<arg_key>", "</arg_key>"),
            value: ("<arg_value>", "</arg_value>"),
            end: "</tool_call>",
        }),
        ..BASE
    },
    Syntax {
        name: "gemma-4",
        signs: &["<|tool_call>", "<tool_call|>"],
        call: ("<|tool_call>", "<tool_call|>"),
        body: Body::Braced,
        ..BASE
    },
    Syntax {
        name: "deepseek-v4",
        signs: &["｜DSML｜", "invoke name=", "tool_calls>"],
        section: Some(("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")),
        call: ("<｜DSML｜invoke name=\"", "</｜DSML｜invoke>"),
        body: Body::Tagged(&DSML),
        ..BASE
    },
    Syntax {
        name: "deepseek-v3.2",
        signs: &["｜DSML｜", "invoke name="],
        section: Some(("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")),
        call: ("<｜DSML｜invoke name=\"", "</｜DSML｜invoke>"),
        body: Body::Tagged(&DSML),
        ..BASE
    },
    Syntax { name: "nemotron-v2", signs: &["<TOOLCALL>"], call: ("<TOOLCALL>", "</TOOLCALL>"), is_list: true, ..BASE },
    Syntax {
        name: "minimax",
        signs: &["<minimax:tool_call>"],
        section: Some(("<minimax:tool_call>", "</minimax:tool_call>")),
        call: ("<invoke name=", "</invoke>"),
        body: Body::Tagged(&Tags {
            name_ends: &[">"],
            key: ("<parameter name=", ">"),
            value: ("", "</parameter>"),
            end: "</invoke>",
        }),
        ..BASE
    },
    Syntax {
        name: "seed-oss",
        signs: &["<seed:tool_call>"],
        section: Some(("<seed:tool_call>", "</seed:tool_call>")),
        call: ("<function=", "</function>"),
        body: Body::Tagged(&PARAMETERS),
        ..BASE
    },
    Syntax {
        name: "qwen3-coder",
        signs: &["<tool_call>", "<function=", "<parameter="],
        section: Some(("<tool_call>", "</tool_call>")),
        call: ("<function=", "</function>"),
        body: Body::Tagged(&PARAMETERS),
        ..BASE
    },
    Syntax {
        name: "minicpm-5",
        signs: &["<function name=\"", "<param name=\""],
        call: ("<function name=\"", "</function>"),
        body: Body::Tagged(&Tags {
            name_ends: &["\">"],
            key: ("<param name=\"", "\">"),
            value: ("", "</param>"),
            end: "</function>",
        }),
        ..BASE
    },
    Syntax {
        name: "solar-open",
        signs: &["<|tool_call:begin|>"],
        call: ("<|tool_call:begin|>", "<|tool_call:end|>"),
        body: Body::Named(&["<|tool_call:args|>"]),
        ..BASE
    },
    Syntax {
        name: "olmo-3",
        signs: &["<function_calls>"],
        section: Some(("<function_calls>", "</function_calls>")),
        body: Body::Python,
        ..BASE
    },
    Syntax {
        name: "functionary-v3.1",
        signs: &["<function="],
        call: ("<function=", "</function>"),
        body: Body::Named(&[">"]),
        ..BASE
    },
    Syntax {
        // Hunyuan, Jamba and Apriel write a list, MiniMax M1 an object on each line.
        name: "tool-calls",
        signs: &["<tool_calls>"],
        call: ("<tool_calls>", "</tool_calls>"),
        is_list: true,
        ..BASE
    },
    Syntax { name: "hermes", signs: &["<tool_call>"], call: ("<tool_call>", "</tool_call>"), ..BASE },
    Syntax {
        name: "mistral",
        signs: &["[TOOL_CALLS]"],
        call: ("[TOOL_CALLS]", ""),
        body: Body::Named(&["[ARGS]"]),
        ..BASE
    },
    Syntax {
        name: "command-r7b",
        signs: &["<|START_ACTION|>"],
        call: ("<|START_ACTION|>", "<|END_ACTION|>"),
        spelt: ("{\"tool_call_id\": \"0\", \"tool_name\": ", ", \"parameters\": "),
        is_list: true,
        ..BASE
    },
    Syntax {
        name: "command-r",
        signs: &["Action:", "```json"],
        call: ("Action: ```json", "```"),
        spelt: TOOL_NAME,
        is_list: true,
        ..BASE
    },
    Syntax {
        // Granite 3 and Phi-4-mini; only the latter closes it.
        name: "granite",
        signs: &["<|tool_call|>"],
        call: ("<|tool_call|>", "<|/tool_call|>"),
        is_list: true,
        ..BASE
    },
    Syntax {
        name: "lfm2",
        signs: &["<|tool_call_start|>"],
        call: ("<|tool_call_start|>", "<|tool_call_end|>"),
        body: Body::Python,
        is_list: true,
        ..BASE
    },
    Syntax {
        // Newer templates leave the marks to the model.
        name: "lfm2",
        signs: &["List of tools: "],
        call: ("<|tool_call_start|>", "<|tool_call_end|>"),
        body: Body::Python,
        is_list: true,
        ..BASE
    },
    Syntax {
        name: "internlm-2",
        signs: &["<|plugin|>"],
        call: ("<|action_start|><|plugin|>", "<|action_end|>"),
        spelt: ("{\"name\": ", ", \"parameters\": "),
        ..BASE
    },
    Syntax {
        name: "gigachat-3.1",
        signs: &["<|role_sep|>", "<|function_call|>"],
        call: ("<|function_call|>", ""),
        ..BASE
    },
    Syntax {
        name: "gigachat-3",
        signs: &["<|role_sep|>", "<|message_sep|>", "function call"],
        call: ("function call<|role_sep|>\n", "<|message_sep|>"),
        ..BASE
    },
    Syntax {
        // Llama 3.2 and 4, by what their templates tell the model to write; only the latter has marks.
        name: "pythonic",
        signs: &["[func_name1(params_name1=params_value1"],
        call: ("<|python_start|>", "<|python_end|>"),
        body: Body::Python,
        is_bare: true,
        ..BASE
    },
    Syntax { name: "apertus", signs: &["<|tools_prefix|>"], call: ("<|tools_prefix|>", "<|tools_suffix|>"), ..BASE },
    Syntax { name: "firefunction", signs: &[" functools["], call: ("functools", ""), is_list: true, ..BASE },
    Syntax {
        name: "llama-3",
        signs: &["<|start_header_id|>", "Environment: ipython"],
        call: ("<|python_tag|>", ""),
        is_bare: true,
        code: Some("python"),
        spelt: ("{\"name\": ", ", \"parameters\": "),
        ..BASE
    },
];

/// Marks that mean nothing to a reader, and what stands in the template of a family that writes them.
const DROPPED: &[(&[&str], &[&str])] = &[
    (&["<|START_RESPONSE|>"], &["<|START_RESPONSE|>", "<|END_RESPONSE|>"]),
    (&["<|START_TEXT|>"], &["<|START_TEXT|>", "<|END_TEXT|>"]),
    (
        &["<|begin|>assistant", "<|tool_call:begin|>"],
        &["<|begin|>assistant", "<|content|>", "<|tool_calls|>", "<|calls|>"],
    ),
    (&["<|role_sep|>", "<|message_sep|>"], &["<|message_sep|>"]),
    // Hunyuan and ERNIE, behind their reasoning.
    (&["<answer>", "<think>"], &["<answer>", "</answer>"]),
    (&["<response>", "<think>"], &["<response>", "</response>"]),
];

/// Marks around reasoning, by what stands in the template.
const REASONINGS: &[(&str, &str)] = &[
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|think|>", "<|end|>"),
];

/// A mark that ends reasoning in one family, and messages in others.
const COMMON_END: &str = "<|end|>";

impl AnswerFormat {
    /// The format of the model that this chat template belongs to.
    pub fn detect(template: &str) -> Self {
        if template.contains("<|channel|>") && template.contains("<|message|>") {
            return Self { channels: Some(ChannelKind::Harmony), ..Self::default() };
        }
        if template.contains(">>>all") {
            return Self { channels: Some(ChannelKind::Functionary), ..Self::default() };
        }
        let holds = |signs: &[&str]| signs.iter().all(|sign| template.contains(sign));
        let is_told = |close: &str| close != COMMON_END && template.contains(close);
        let reasoning = REASONINGS.iter().find(|(open, close)| is_told(close) || template.contains(open.trim_end()));
        Self {
            reasoning: reasoning.copied(),
            tools: SYNTAXES.iter().find(|syntax| holds(syntax.signs)),
            channels: None,
            dropped: DROPPED.iter().find(|(signs, _)| holds(signs)).map_or(&[], |(_, marks)| marks),
        }
    }

    /// The same for an answer that must be a call: a family that has no way of its own then writes JSON.
    pub fn forced(&self) -> Self {
        const JSON: &Syntax = &Syntax { name: "json", is_bare: true, ..BASE };
        match self.has_tools() {
            true => self.clone(),
            false => Self { tools: Some(JSON), ..self.clone() },
        }
    }

    /// The same without calls: for a request that brings no tools, where JSON and tags are only text.
    pub fn without_tools(&self) -> Self {
        Self { tools: None, ..self.clone() }
    }

    /// Whether calls are recognised.
    pub fn has_tools(&self) -> bool {
        self.tools.is_some() || self.channels.is_some()
    }

    /// Whether reasoning is told apart from text.
    pub fn has_reasoning(&self) -> bool {
        self.reasoning.is_some() || self.channels == Some(ChannelKind::Harmony)
    }

    /// The family's name for its way of writing calls.
    pub fn name(&self) -> &'static str {
        match (self.channels, self.tools) {
            (Some(ChannelKind::Harmony), _) => "harmony",
            (Some(ChannelKind::Functionary), _) => "functionary-v3.2",
            (None, Some(syntax)) => syntax.name,
            (None, None) => "none",
        }
    }

    /// Marks that must be seen by a [`super::Parser`] though the vocabulary may call them special.
    pub fn marks(&self) -> Vec<&'static str> {
        let mut marks: Vec<&'static str> = self.dropped.to_vec();
        marks.extend(self.reasoning.into_iter().flat_map(|(open, close)| [open, close]));
        if self.channels == Some(ChannelKind::Harmony) {
            marks.extend([
                "<|start|>",
                "<|channel|>",
                "<|constrain|>",
                "<|message|>",
                "<|end|>",
                "<|call|>",
                "<|return|>",
            ]);
        }
        if let Some(syntax) = self.tools {
            marks.extend(syntax.section.into_iter().flat_map(|(open, close)| [open, close]));
            marks.extend([syntax.call.0, syntax.call.1]);
            match &syntax.body {
                Body::Json(_) | Body::Python => {}
                Body::Braced => marks.push(QUOTE),
                Body::Named(after) => {
                    marks.extend_from_slice(after);
                    marks.extend((syntax.name == "solar-open").then_some(NAME));
                }
                Body::Tagged(tags) => marks.extend([tags.key.0, tags.key.1, tags.value.0, tags.value.1, tags.end]),
            }
        }
        marks.retain(|mark| !mark.is_empty());
        marks
    }

    /// The marks that end text.
    pub(crate) fn openers(&self) -> Vec<&'static str> {
        let mut marks: Vec<&'static str> = self.dropped.to_vec();
        marks.extend(self.reasoning.map(|(open, _)| open));
        if let Some(syntax) = self.tools {
            marks.extend(syntax.section.map(|(open, _)| open));
            marks.push(syntax.call.0);
        }
        marks.retain(|mark| !mark.is_empty());
        marks
    }
}
