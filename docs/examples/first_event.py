"""A first event from Python: pip install pika; AMQP_URL=amqp://user:password@host:port/vhost python first_event.py"""

import json
import os

import pika

event = {
    "specversion": "1.0",
    "id": "1d8f0f3e-python",
    "source": "/shop/orders",
    "type": "message.send.v1",
    "data": {
        "tenant": "acme",
        "class": "transactional",
        "event_type": "order.shipped",
        "event_id": "ORDER-1002",
        "recipients": ["+91 98765 43210"],
        "body": "Your order ORDER-1002 has been shipped.",
        "dlt": {"template_id": "1207161000000000042"},
    },
}

connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
channel = connection.channel()
channel.confirm_delivery()  # from here on a publish returns when the broker has it, and raises if it has not
channel.basic_publish(
    exchange="sendonce.events",
    routing_key=event["data"]["class"],
    body=json.dumps(event).encode(),
    properties=pika.BasicProperties(content_type="application/cloudevents+json", delivery_mode=2),
)
connection.close()
print("confirmed by the broker")
