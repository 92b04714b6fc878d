//! A first event from Rust: `cargo add lapin serde_json && cargo add tokio --features macros,rt-multi-thread`, then
//! `AMQP_URL=amqp://user:password@host:port/vhost cargo run`.

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let event = json!({
        "specversion": "1.0",
        "id": "1d8f0f3e-rust",
        "source": "/shop/orders",
        "type": "message.send.v1",
        "data": {
            "tenant": "acme",
            "class": "transactional",
            "event_type": "order.shipped",
            "event_id": "ORDER-1004",
            "recipients": ["+91 98765 43210"],
            "body": "Your order ORDER-1004 has been shipped.",
            "dlt": { "template_id": "1207161000000000042" },
        },
    });

    let connection = Connection::connect(&std::env::var("AMQP_URL")?, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let properties =
        BasicProperties::default().with_content_type("application/cloudevents+json".into()).with_delivery_mode(2);
    let (exchange, class, body) = ("sendonce.events".into(), "transactional".into(), event.to_string());
    let sent =
        channel.basic_publish(exchange, class, BasicPublishOptions::default(), body.as_bytes(), properties).await?;
    if !matches!(sent.await?, Confirmation::Ack(None)) {
        return Err("the broker has not taken it: publish it again, the same event is sent once".into());
    }
    connection.close(200, "done".into()).await?;
    println!("confirmed by the broker");
    Ok(())
}
