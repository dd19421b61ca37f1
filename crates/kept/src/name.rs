//! Names of kept blocks. A key is a hash of a block's tokens and of the key before it, so it identifies the whole text
//! up to there. Collisions are infeasible, even for an attacker.

use batch::{AdapterId, TokenId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// Stands for the tokens of a block and everything before them.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct PrefixKey(pub [u8; 16]);

/// What is kept under a key.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub enum KeptKind {
    /// Keys and values of one block.
    Block,
    /// The recurrent state after that block.
    State,
    /// Keys and values of that block in layers with a window, where these have a pool of their own.
    Window,
}

/// A key and what is meant by it.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
pub struct Name {
    pub key: PrefixKey,
    pub kind: KeptKind,
}

/// Which numbers these are: of which weights, in which layout, by which build. Bytes of another identity mean nothing.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug, Serialize, Deserialize)]
pub struct Identity(pub [u8; 32]);

impl PrefixKey {
    /// Before the first block of a text.
    pub const ROOT: Self = Self([0; 16]);

    /// Before the first block of a text that an adapter reads: its keys and values cannot be shared.
    pub fn root(adapter: Option<AdapterId>) -> Self {
        match adapter {
            Some(AdapterId(id)) => {
                Self::first_half(Sha256::new().chain_update(b"adapter").chain_update(id.to_le_bytes()))
            }
            None => Self::ROOT,
        }
    }

    /// Of the block with these tokens that comes after this one.
    pub fn then(self, tokens: &[TokenId]) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.0);
        tokens.iter().for_each(|token| hash.update(token.0.to_le_bytes()));
        Self::first_half(hash)
    }

    fn first_half(hash: Sha256) -> Self {
        let whole = hash.finalize();
        Self(std::array::from_fn(|i| whole[i]))
    }
}

impl Identity {
    /// Of everything that the numbers depend on, in a fixed order.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            // With its length, so that parts cannot run into one another.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let whole = hash.finalize();
        Self(std::array::from_fn(|i| whole[i]))
    }
}

impl fmt::Display for PrefixKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The first half: enough to tell folders apart.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..16].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl KeptKind {
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Self::Block => "kv",
            Self::State => "state",
            Self::Window => "window",
        }
    }
}

impl Name {
    pub(crate) fn file_name(&self) -> String {
        format!("{}.{}", self.key, self.kind.extension())
    }

    /// `None` for files of others.
    pub(crate) fn of_file(file_name: &str) -> Option<Self> {
        let (hex, extension) = file_name.split_once('.')?;
        let kind = [KeptKind::Block, KeptKind::State, KeptKind::Window]
            .into_iter()
            .find(|kind| kind.extension() == extension)?;
        if hex.len() != 32 || !hex.is_ascii() {
            return None;
        }
        let mut key = [0; 16];
        for (i, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Self { key: PrefixKey(key), kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stands_for_everything_before_it() {
        let [a, b] = [1, 2].map(|token| vec![TokenId(token); 16]);
        let keys = [
            PrefixKey::ROOT.then(&a).then(&b),
            PrefixKey::ROOT.then(&b).then(&b),
            PrefixKey::ROOT.then(&b),
            PrefixKey::root(Some(AdapterId(7))).then(&b),
            PrefixKey::root(Some(AdapterId(8))).then(&b),
        ];
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        // SHA-256 of 16 zeros and sixteen times 01000000, by coreutils' sha256sum.
        assert_eq!(PrefixKey::ROOT.then(&a).to_string(), "83c3e4fabd8683e4b9ccec2119515f24");
    }

    #[test]
    fn a_name_survives_as_a_file_name() {
        for kind in [KeptKind::Block, KeptKind::State, KeptKind::Window] {
            let name = Name { key: PrefixKey::ROOT.then(&[TokenId(3); 16]), kind };
            assert_eq!(Name::of_file(&name.file_name()), Some(name));
        }
        for other in ["lock", "00.kv", "x.kv", "0000000000000000000000000000000g.kv"] {
            assert_eq!(Name::of_file(other), None);
        }
    }
}
