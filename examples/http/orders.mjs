// Push, take and acknowledge over HTTP with nothing but fetch: node orders.mjs [http://localhost:8080/api/v2]
const api = process.argv[2] ?? "http://localhost:8080/api/v2";

const post = async (path, body, headers = {}) => {
  const answer = await fetch(api + path, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers },
    body: body && JSON.stringify(body),
  });
  if (answer.status === 204) return null;
  const found = await answer.json();
  if (!answer.ok) throw new Error(`${found.code}: ${found.detail} ${found.hint}`);
  return found;
};

await post("/queues/orders/messages", { messages: [{ value: { id: 1 } }] }, { "Idempotency-Key": crypto.randomUUID() });
for (let popped; (popped = await post("/queues/orders/groups/mail/pop?wait=2")); ) {
  for (const claim of popped.claims) {
    for (const message of claim.messages) console.log(message.partition, message.offset, message.value);
    await post("/acks", { acks: [{ lease: claim.lease }] });
  }
}
