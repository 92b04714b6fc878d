#!/bin/sh
# A first event with curl, through RabbitMQ's management API: for looking around. A service publishes over AMQP.
# Needs MANAGEMENT_URL (http://user:password@host:port) and AMQP_URL, whose last part names the virtual host.
set -eu

event=$(cat <<'JSON'
{
  "specversion": "1.0",
  "id": "1d8f0f3e-curl",
  "source": "/shop/orders",
  "type": "message.send.v1",
  "data": {
    "tenant": "acme",
    "class": "transactional",
    "event_type": "order.shipped",
    "event_id": "ORDER-1001",
    "recipients": ["+91 98765 43210"],
    "body": "Your order ORDER-1001 has been shipped.",
    "dlt": { "template_id": "1207161000000000042" }
  }
}
JSON
)

curl --silent --show-error --fail --header 'content-type: application/json' --data @- \
    "$MANAGEMENT_URL/api/exchanges/${AMQP_URL##*/}/sendonce.events/publish" <<JSON
{
  "routing_key": "transactional",
  "properties": { "content_type": "application/cloudevents+json", "delivery_mode": 2 },
  "payload_encoding": "base64",
  "payload": "$(printf '%s' "$event" | base64 | tr -d '\n')"
}
JSON
