//! Settings of a chat that can be changed while it runs.

use crate::report::HintExt;
use crate::sampling_args::SamplingArgs;
use anyhow::{Result, anyhow};

/// What `/set` changes.
pub const NAMES: [&str; 9] = [
    "temperature",
    "top-k",
    "top-p",
    "min-p",
    "repeat-penalty",
    "presence-penalty",
    "frequency-penalty",
    "max-tokens",
    "seed",
];

/// `/set temperature 0.2`: the same names, limits and messages as on the command line.
pub fn set(sampling: &mut SamplingArgs, rest: &str) -> Result<()> {
    #[derive(clap::Parser)]
    #[command(no_binary_name = true, disable_help_flag = true)]
    struct SettingParser {
        #[command(flatten)]
        sampling: SamplingArgs,
    }
    let (name, value) = rest.split_once(char::is_whitespace).map_or((rest, ""), |(name, value)| (name, value.trim()));
    // ollama's spelling.
    let name = &name.replace('_', "-");
    let name = if name == "num-predict" { "max-tokens" } else { name };
    if !NAMES.contains(&name) {
        return Err(anyhow!("there is no setting `{name}`")).with_hint(|| {
            let meant = hub::suggest::closest(name, NAMES).map(|meant| format!("did you mean {meant}? "));
            format!("{}The settings are {}", meant.unwrap_or_default(), NAMES.join(", "))
        });
    }
    if value.is_empty() {
        return Err(anyhow!("/set {name} needs a value")).with_hint(|| format!("now: {}", describe(sampling)));
    }
    if (name, value) == ("seed", "random") {
        sampling.seed = None;
        return Ok(());
    }
    let parsed = <SettingParser as clap::Parser>::try_parse_from([format!("--{name}={value}")]);
    let new = match parsed {
        Ok(parsed) => parsed.sampling,
        Err(_) => return Err(anyhow!("invalid value `{value}` for {name}")).hint("`roci run --help` shows the limits"),
    };
    match name {
        "temperature" => sampling.temperature = new.temperature,
        "top-k" => sampling.top_k = new.top_k,
        "top-p" => sampling.top_p = new.top_p,
        "min-p" => sampling.min_p = new.min_p,
        "repeat-penalty" => sampling.repeat_penalty = new.repeat_penalty,
        "presence-penalty" => sampling.presence_penalty = new.presence_penalty,
        "frequency-penalty" => sampling.frequency_penalty = new.frequency_penalty,
        "max-tokens" => sampling.max_tokens = new.max_tokens,
        _ => sampling.seed = new.seed,
    }
    Ok(())
}

/// All of them on one line.
pub fn describe(s: &SamplingArgs) -> String {
    let seed = s.fixed_seed().map_or_else(|| "random".to_owned(), |seed| seed.to_string());
    let max_tokens = s.max_tokens().map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
    format!(
        "temperature {}, top-k {}, top-p {}, min-p {}, repeat-penalty {}, presence-penalty {}, frequency-penalty {}, \
         max-tokens {max_tokens}, seed {seed}",
        s.temperature, s.top_k, s.top_p, s.min_p, s.repeat_penalty, s.presence_penalty, s.frequency_penalty,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_the_limits_of_the_command_line() {
        #[derive(clap::Parser)]
        struct Only {
            #[command(flatten)]
            sampling: SamplingArgs,
        }
        let mut sampling = <Only as clap::Parser>::parse_from(["x"]).sampling;
        set(&mut sampling, "temperature 0.25").unwrap();
        set(&mut sampling, "presence-penalty -0.5").unwrap();
        set(&mut sampling, "seed 7").unwrap();
        set(&mut sampling, "top_k 9").unwrap();
        set(&mut sampling, "num_predict 5").unwrap();
        assert_eq!((sampling.top_k, sampling.max_tokens), (9, 5));
        assert_eq!((sampling.temperature, sampling.presence_penalty, sampling.seed), (0.25, -0.5, Some(7)));
        set(&mut sampling, "seed random").unwrap();
        assert_eq!(sampling.seed, None);
        for bad in ["", "temperature", "temperature hot", "temperature -1", "top-p 2", "stop x", "max-tokens -3"] {
            assert!(set(&mut sampling, bad).is_err(), "{bad}");
        }
        assert_eq!(sampling.temperature, 0.25);
        let said = |rest: &str| {
            let error = set(&mut sampling.clone(), rest).unwrap_err();
            format!("{error}; {}", crate::report::hint_of(&error).unwrap_or_default())
        };
        assert!(said("temprature 1").starts_with("there is no setting `temprature`; did you mean temperature? The "));
        assert!(said("colour 1").starts_with("there is no setting `colour`; The settings are temperature, top-k, "));
        assert!(said("top-k").starts_with("/set top-k needs a value; now: temperature 0.25, top-k 9"));
    }
}
