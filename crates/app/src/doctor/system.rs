//! What the operating system says, read through one place: files, links, device nodes and environment variables. A
//! live machine remembers everything that was read, so that `roci doctor --record` can write it down and a test, or a
//! person who was sent the recording, can run the same diagnosis again. Nothing else is ever read or sent.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Result, anyhow};

const HEADER: &str = "# roci doctor recording, version 1";
/// Sysfs attributes are a page at most; no file the doctor reads is larger than this.
const MAX_FILE_BYTES: usize = 64 << 10;

pub struct System {
    source: SystemSource,
    seen: RefCell<BTreeMap<String, SystemEntry>>,
}

enum SystemSource {
    Live,
    Recorded(BTreeMap<String, SystemEntry>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum SystemEntry {
    File(String),
    Link(String),
    Folder(Vec<String>),
    Node(DeviceNode),
    Variable(String),
}

/// The permissions of a device node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceNode {
    /// The permission bits alone.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// Who runs this program.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct User {
    pub uid: u32,
    pub gids: Vec<u32>,
}

impl System {
    pub fn live() -> Self {
        Self { source: SystemSource::Live, seen: RefCell::default() }
    }

    /// A machine as it was recorded.
    pub fn recorded(text: &str) -> Result<Self> {
        let mut entries = BTreeMap::new();
        let mut lines = text.lines().enumerate();
        match lines.next() {
            Some((_, HEADER)) => {}
            _ => return Err(anyhow!("not a recording of `roci doctor`: the first line is not `{HEADER}`")),
        }
        for (i, line) in lines {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (path, entry) = parse(line).ok_or_else(|| anyhow!("cannot parse line {}: `{line}`", i + 1))?;
            entries.insert(path, entry);
        }
        Ok(Self { source: SystemSource::Recorded(entries), seen: RefCell::default() })
    }

    /// Everything that was read so far.
    pub fn recording(&self) -> String {
        let mut text = format!("{HEADER}\n");
        for (path, entry) in self.seen.borrow().iter() {
            let _ = match entry {
                SystemEntry::File(content) => writeln!(text, "{path} = {}", escape(content)),
                SystemEntry::Link(target) => writeln!(text, "{path} -> {target}"),
                SystemEntry::Folder(names) => writeln!(text, "{path}/ = {}", names.join(" ")),
                SystemEntry::Node(DeviceNode { mode, uid, gid }) => {
                    writeln!(text, "{path} node {mode:04o} {uid} {gid}")
                }
                SystemEntry::Variable(value) => writeln!(text, "{path}={}", escape(value)),
            };
        }
        text
    }

    /// Whether this machine is the one the program runs on.
    pub fn is_live(&self) -> bool {
        matches!(self.source, SystemSource::Live)
    }

    /// A file's text without the white space around it.
    pub fn read(&self, path: &str) -> Option<String> {
        self.look(
            path,
            |entries| matches!(entries.get(path)?, SystemEntry::File(_)).then(|| entries[path].clone()),
            || {
                let mut bytes = fs::read(path).ok()?;
                bytes.truncate(MAX_FILE_BYTES);
                Some(SystemEntry::File(String::from_utf8_lossy(&bytes).trim().to_owned()))
            },
        )
        .and_then(|entry| if let SystemEntry::File(text) = entry { Some(text) } else { None })
    }

    /// A number in decimal, or in hexadecimal with `0x`.
    pub fn number(&self, path: &str) -> Option<u64> {
        let text = self.read(path)?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// The last part of a link's target: `/sys/.../driver -> ../drivers/amdgpu` gives `amdgpu`.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let entry = self.look(
            path,
            |entries| matches!(entries.get(path)?, SystemEntry::Link(_)).then(|| entries[path].clone()),
            || Some(SystemEntry::Link(fs::read_link(path).ok()?.to_string_lossy().into_owned())),
        )?;
        let SystemEntry::Link(target) = entry else { return None };
        Some(target.rsplit('/').next().unwrap_or(&target).to_owned())
    }

    /// The names in a folder, sorted; none where there is no such folder.
    pub fn list(&self, path: &str) -> Vec<String> {
        let key = format!("{path}/");
        let entry = self.look(
            &key,
            |entries| Some(SystemEntry::Folder(children(entries, &key))),
            || {
                let mut names: Vec<String> = fs::read_dir(path)
                    .ok()?
                    .flatten()
                    .map(|entry| entry.file_name().to_string_lossy().into_owned())
                    .collect();
                names.sort();
                Some(SystemEntry::Folder(names))
            },
        );
        if let Some(SystemEntry::Folder(names)) = entry { names } else { Vec::new() }
    }

    pub fn exists(&self, path: &str) -> bool {
        let prefix = format!("{path}/");
        let recorded = |entries: &BTreeMap<String, SystemEntry>| {
            let found = entries.get(path).cloned();
            found.or_else(|| (!children(entries, &prefix).is_empty()).then(|| SystemEntry::File(String::new())))
        };
        self.look(path, recorded, || Path::new(path).exists().then(|| SystemEntry::File(String::new()))).is_some()
    }

    /// The permissions of a device node.
    pub fn node(&self, path: &str) -> Option<DeviceNode> {
        let entry = self.look(
            path,
            |entries| entries.get(path).cloned(),
            || {
                use std::os::unix::fs::MetadataExt;
                let data = fs::metadata(path).ok()?;
                Some(SystemEntry::Node(DeviceNode { mode: data.mode() & 0o777, uid: data.uid(), gid: data.gid() }))
            },
        );
        if let Some(SystemEntry::Node(node)) = entry { Some(node) } else { None }
    }

    pub fn variable(&self, name: &str) -> Option<String> {
        let key = format!("env {name}");
        let entry = self.look(
            &key,
            |entries| entries.get(&key).cloned(),
            || Some(SystemEntry::Variable(std::env::var_os(name)?.to_string_lossy().into_owned())),
        );
        if let Some(SystemEntry::Variable(value)) = entry { Some(value) } else { None }
    }

    pub fn user(&self) -> User {
        // One attribute at a time, so that a recording does not hold the whole of /proc/self/status.
        let status = self.read("/proc/self/status").unwrap_or_default();
        let numbers = |name: &str| -> Vec<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
        };
        let mut gids = numbers("Groups:");
        gids.extend(numbers("Gid:").first());
        User { uid: numbers("Uid:").get(1).copied().unwrap_or(0), gids }
    }

    /// The name of a group, or its number.
    pub fn group_name(&self, gid: u32) -> String {
        let groups = self.read("/etc/group").unwrap_or_default();
        let name = groups.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(gid)).then(|| name.to_owned())
        });
        name.unwrap_or_else(|| gid.to_string())
    }

    fn look(
        &self,
        key: &str,
        recorded: impl FnOnce(&BTreeMap<String, SystemEntry>) -> Option<SystemEntry>,
        live: impl FnOnce() -> Option<SystemEntry>,
    ) -> Option<SystemEntry> {
        let entry = match &self.source {
            SystemSource::Live => live(),
            SystemSource::Recorded(entries) => recorded(entries),
        }?;
        self.seen.borrow_mut().insert(key.to_owned(), slimmed(key, entry.clone()));
        Some(entry)
    }
}

/// What a recording keeps of an entry: of large files only the lines that the doctor looks at.
fn slimmed(path: &str, entry: SystemEntry) -> SystemEntry {
    let keep = |wanted: &[&str], text: &str| {
        let lines: Vec<&str> = text.lines().filter(|line| wanted.iter().any(|start| line.starts_with(start))).collect();
        lines.join("\n")
    };
    match (path, entry) {
        ("/proc/self/status", SystemEntry::File(text)) => SystemEntry::File(keep(&["Uid:", "Gid:", "Groups:"], &text)),
        ("/etc/group", SystemEntry::File(text)) => SystemEntry::File(keep(&["root:", "render:", "video:"], &text)),
        ("/proc/meminfo", SystemEntry::File(text)) => SystemEntry::File(keep(&["MemTotal:", "MemAvailable:"], &text)),
        (_, entry) => entry,
    }
}

impl DeviceNode {
    /// Whether this user may read and write it.
    pub fn opens_for(&self, user: &User) -> bool {
        let bits = if user.uid == self.uid {
            self.mode >> 6
        } else if user.gids.contains(&self.gid) {
            self.mode >> 3
        } else {
            self.mode
        };
        user.uid == 0 || bits & 0o6 == 0o6
    }
}

/// The names right below a folder, from a listing and from every path under it.
fn children(entries: &BTreeMap<String, SystemEntry>, folder: &str) -> Vec<String> {
    let mut names = match entries.get(folder) {
        Some(SystemEntry::Folder(names)) => names.clone(),
        _ => Vec::new(),
    };
    let below = entries.range(folder.to_owned()..).map(|(path, _)| path).take_while(|path| path.starts_with(folder));
    names.extend(
        below.filter_map(|path| path[folder.len()..].split('/').next()).filter(|n| !n.is_empty()).map(str::to_owned),
    );
    names.sort();
    names.dedup();
    names
}

fn parse(line: &str) -> Option<(String, SystemEntry)> {
    if let Some(variable) = line.strip_prefix("env ") {
        let (name, value) = variable.split_once('=')?;
        return Some((format!("env {name}"), SystemEntry::Variable(unescape(value))));
    }
    if let Some((path, target)) = line.split_once(" -> ") {
        return Some((path.to_owned(), SystemEntry::Link(target.to_owned())));
    }
    if let Some((path, node)) = line.split_once(" node ") {
        let mut words = node.split(' ');
        let mode = u32::from_str_radix(words.next()?, 8).ok()?;
        let (uid, gid) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        return Some((path.to_owned(), SystemEntry::Node(DeviceNode { mode, uid, gid })));
    }
    let (path, value) = line.split_once(" =")?;
    let value = value.strip_prefix(' ').unwrap_or(value);
    match path.ends_with('/') {
        true => Some((path.to_owned(), SystemEntry::Folder(value.split_whitespace().map(str::to_owned).collect()))),
        false => Some((path.to_owned(), SystemEntry::File(unescape(value)))),
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => out.push(if letters.next() == Some('n') { '\n' } else { '\\' }),
            letter => out.push(letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_reads_as_it_was_written() {
        let text = format!(
            "{HEADER}\n/dev/kfd node 0660 0 105\n/sys/a/driver -> ../../drivers/amdgpu\n/sys/a/name = one\\ntwo \\\\\n\
             /sys/list/ = b a\nenv HOME=/home/x\n"
        );
        let system = System::recorded(&text).unwrap();
        assert_eq!(system.read("/sys/a/name").as_deref(), Some("one\ntwo \\"));
        assert_eq!(system.link_name("/sys/a/driver").as_deref(), Some("amdgpu"));
        assert_eq!(system.list("/sys/a"), ["driver", "name"]);
        assert_eq!(system.list("/sys/list"), ["a", "b"]);
        assert_eq!(system.node("/dev/kfd"), Some(DeviceNode { mode: 0o660, uid: 0, gid: 105 }));
        assert_eq!(system.variable("HOME").as_deref(), Some("/home/x"));
        assert!(system.exists("/sys/a") && !system.exists("/sys/b"));
        let again = System::recorded(&system.recording()).unwrap();
        assert_eq!(again.read("/sys/a/name"), system.read("/sys/a/name"));
        assert_eq!(again.node("/dev/kfd"), system.node("/dev/kfd"));
    }

    #[test]
    fn broken_recordings_are_refused() {
        assert!(System::recorded("hello").is_err());
        assert!(System::recorded(&format!("{HEADER}\nno equals sign\n")).is_err());
        assert!(System::recorded(&format!("{HEADER}\n/dev/kfd node 9999 0 1\n")).is_err());
    }

    #[test]
    fn nodes_open_for_their_owner_their_group_and_root() {
        let node = DeviceNode { mode: 0o660, uid: 0, gid: 105 };
        let user = |uid, gids: &[u32]| User { uid, gids: gids.to_vec() };
        assert!(node.opens_for(&user(0, &[])));
        assert!(node.opens_for(&user(1000, &[27, 105])));
        assert!(!node.opens_for(&user(1000, &[27])));
        assert!(DeviceNode { mode: 0o666, ..node }.opens_for(&user(1000, &[])));
        assert!(!DeviceNode { mode: 0o440, ..node }.opens_for(&user(1000, &[105])));
    }
}
