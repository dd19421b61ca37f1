//! Turning weights into smaller types: which type each tensor takes (`recipe`), how much each column matters
//! (`importance`), the work itself (`convert`), and safetensors turned into GGUF first (`export`).

pub mod convert;
mod export;
mod importance;
mod recipe;

pub use export::as_gguf;
pub use importance::{Column, Importance};
pub use recipe::{Mix, TypePlan};

/// A recipe as its name, where options are written down.
pub(crate) mod by_name {
    use super::Mix;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub fn serialize<S: Serializer>(mix: &Option<&'static Mix>, serializer: S) -> Result<S::Ok, S::Error> {
        mix.map(|mix| mix.name).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'static Mix>, D::Error> {
        let name = Option::<String>::deserialize(deserializer)?;
        let find = |name: String| Mix::find(&name).ok_or_else(|| D::Error::custom(format!("no recipe `{name}`")));
        name.map(find).transpose()
    }
}
