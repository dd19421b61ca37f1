//! What each key has used: requests and tokens, in all and by day, for quotas, for the export at `/v1/usage` and for
//! invoices. Days are UTC's. Counts live in memory and, with `--store`, on disk.

use super::App;
use super::error::{ApiError, Result};
use super::generation::Caller;
use axum::Extension;
use axum::extract::{Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// Days that are kept.
const MAX_DAYS: usize = 400;
const DAY_S: u64 = 86_400;

#[derive(Copy, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    pub requests: u64,
    pub prompt_tokens: u64,
    pub generated_tokens: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.prompt_tokens += other.prompt_tokens;
        self.generated_tokens += other.generated_tokens;
    }

    pub fn tokens(&self) -> u64 {
        self.prompt_tokens + self.generated_tokens
    }
}

/// One key's account.
#[derive(Debug, Default)]
pub struct Account {
    pub name: String,
    /// By day, as `YYYY-MM-DD`.
    days: Mutex<BTreeMap<String, Counts>>,
}

impl Account {
    pub fn add(&self, counts: Counts, now_s: u64) {
        let mut days = self.days.lock().unwrap_or_else(PoisonError::into_inner);
        days.entry(date(now_s)).or_default().add(counts);
        while days.len() > MAX_DAYS {
            days.pop_first();
        }
    }

    /// Of the days whose name begins so: a day, a month, or all.
    fn sum(&self, prefix: &str) -> Counts {
        let days = self.days.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = Counts::default();
        days.iter().filter(|(day, _)| day.starts_with(prefix)).for_each(|(_, counts)| sum.add(*counts));
        sum
    }

    pub fn today(&self, now_s: u64) -> Counts {
        self.sum(&date(now_s))
    }

    pub fn this_month(&self, now_s: u64) -> Counts {
        self.sum(&date(now_s)[..7])
    }

    pub fn total(&self) -> Counts {
        self.sum("")
    }

    pub fn days(&self) -> BTreeMap<String, Counts> {
        self.days.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn date(now_s: u64) -> String {
    super::ollama::timestamp(now_s)[..10].to_owned()
}

/// Seconds until the next day, and until the next month, begin.
pub fn seconds_left(now_s: u64) -> (u64, u64) {
    let day = DAY_S - now_s % DAY_S;
    let month = &date(now_s)[..7];
    let days_left = (0..32).take_while(|n| date(now_s + n * DAY_S).starts_with(month)).count() as u64;
    (day, day + days_left.saturating_sub(1) * DAY_S)
}

/// The accounts by key. Without keys there is one, without a name.
#[derive(Debug, Default)]
pub struct UsageAccounts(Mutex<BTreeMap<String, Arc<Account>>>);

impl UsageAccounts {
    pub fn account(&self, name: &str) -> Arc<Account> {
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Account { name: name.to_owned(), days: Mutex::default() });
        Arc::clone(accounts.entry(name.to_owned()).or_insert_with(new))
    }

    pub fn all(&self) -> Vec<Arc<Account>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// As it is kept on disk.
    pub fn save(&self) -> Vec<(String, Vec<u8>)> {
        let line = |account: Arc<Account>| {
            let bytes = serde_json::to_vec(&account.days()).unwrap_or_default();
            (account.name.clone(), bytes)
        };
        self.all().into_iter().map(line).collect()
    }

    /// What was kept on disk; what cannot be read is left out.
    pub fn restore(&self, saved: &[(String, Vec<u8>)]) {
        for (name, bytes) in saved {
            let Ok(days) = serde_json::from_slice(bytes) else { continue };
            *self.account(name).days.lock().unwrap_or_else(PoisonError::into_inner) = days;
        }
    }
}

/// `GET /v1/usage`: by key and day, as JSON or, with `?format=csv`, as a table. A key sees its own unless it is an
/// administrator's.
pub async fn export(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    account: Option<Extension<Arc<Account>>>,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response> {
    let own = account.map(|Extension(account)| account);
    let accounts = match (caller.is_guest, own) {
        (true, own) => own.into_iter().collect(),
        (false, _) => app.gate.usage.all(),
    };
    let from = query.get("from").map(String::as_str).unwrap_or_default();
    let to = query.get("to").map_or("~", String::as_str);
    let days =
        |account: &Account| account.days().into_iter().filter(|(day, _)| day.as_str() >= from && day.as_str() <= to);
    match query.get("format").map(String::as_str) {
        None | Some("json") => {
            let data = accounts.iter().map(|account| {
                let days: Vec<Value> = days(account).map(|(day, counts)| with(json!(counts), "date", day)).collect();
                json!({"key": account.name, "total": account.total(), "days": days})
            });
            Ok(axum::Json(json!({"object": "list", "data": data.collect::<Vec<_>>()})).into_response())
        }
        Some("csv") => {
            let mut text = "key,date,requests,prompt_tokens,generated_tokens\n".to_owned();
            for account in &accounts {
                for (day, Counts { requests, prompt_tokens, generated_tokens }) in days(account) {
                    text.push_str(&format!("{},{day},{requests},{prompt_tokens},{generated_tokens}\n", account.name));
                }
            }
            Ok(([(header::CONTENT_TYPE, "text/csv")], text).into_response())
        }
        Some(other) => Err(ApiError::bad(format!("format is `{other}`: expected json or csv")).param("format")),
    }
}

fn with(mut object: Value, key: &str, value: String) -> Value {
    object[key] = value.into();
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-16, 06:00.
    const NOW_S: u64 = 1_794_808_800;

    #[test]
    fn days_and_months_add_up_and_survive() {
        let usage = UsageAccounts::default();
        let account = usage.account("alice");
        let counts = Counts { requests: 1, prompt_tokens: 10, generated_tokens: 5 };
        for days_ago in [0, 0, 1, 20] {
            account.add(counts, NOW_S - days_ago * DAY_S);
        }
        assert_eq!(account.today(NOW_S).tokens(), 30);
        assert_eq!(account.this_month(NOW_S).tokens(), 45);
        assert_eq!(account.total(), Counts { requests: 4, prompt_tokens: 40, generated_tokens: 20 });
        let other = UsageAccounts::default();
        other.restore(&usage.save());
        assert_eq!(other.account("alice").days(), account.days());
        other.restore(&[("bob".to_owned(), b"broken".to_vec())]);
        assert_eq!(other.account("bob").total(), Counts::default());
    }

    #[test]
    fn old_days_leave() {
        let account = Account::default();
        for day in 0..1_000 {
            account.add(Counts { requests: 1, ..Counts::default() }, day * DAY_S);
        }
        assert_eq!(account.days().len(), MAX_DAYS);
    }

    #[test]
    fn quotas_begin_anew_at_midnight_and_on_the_first() {
        assert_eq!(date(NOW_S), "2026-11-16");
        assert_eq!(seconds_left(NOW_S), (18 * 3600, 18 * 3600 + 14 * DAY_S));
    }
}
