//! `/openapi.json`: what this server answers to.

use axum::Json;
use serde_json::{Value, json};

pub async fn document() -> Json<Value> {
    Json(json!({"openapi": "3.1.0", "info": {"title": "roci", "version": env!("CARGO_PKG_VERSION")}, "paths": {}}))
}
