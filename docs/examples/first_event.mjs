// A first event from Node: npm install amqplib; AMQP_URL=amqp://user:password@host:port/vhost node first_event.mjs

import amqp from "amqplib";

const event = {
  specversion: "1.0",
  id: "1d8f0f3e-node",
  source: "/shop/orders",
  type: "message.send.v1",
  data: {
    tenant: "acme",
    class: "transactional",
    event_type: "order.shipped",
    event_id: "ORDER-1003",
    recipients: ["+91 98765 43210"],
    body: "Your order ORDER-1003 has been shipped.",
    dlt: { template_id: "1207161000000000042" },
  },
};

const connection = await amqp.connect(process.env.AMQP_URL);
const channel = await connection.createConfirmChannel();
channel.publish("sendonce.events", event.data.class, Buffer.from(JSON.stringify(event)), {
  contentType: "application/cloudevents+json",
  persistent: true,
});
await channel.waitForConfirms(); // rejects if the broker has not taken it
await connection.close();
console.log("confirmed by the broker");
