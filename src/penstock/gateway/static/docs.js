// Shows /openapi.json: every route by room, its parameters, bodies and answers.
const make = (tag, attributes = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), attributes);
  element.append(...children);
  return element;
};

const name = (schema) => (schema.$ref ? schema.$ref.split("/").pop() : null);

const inWords = (schema) => {
  if (!schema) return "";
  if (schema.$ref) return name(schema);
  if (schema.anyOf) return schema.anyOf.map(inWords).join(" | ");
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  if (schema.type === "array") return `[${inWords(schema.items ?? {})} …]`;
  if (schema.type === "object" && schema.additionalProperties) return `{… : ${inWords(schema.additionalProperties)}}`;
  return [schema.type ?? "any", schema.format].filter(Boolean).join(", ");
};

const fields = (schema, components) => {
  const whole = schema?.$ref ? components[name(schema)] : schema;
  if (!whole?.properties) return make("pre", {}, inWords(schema));
  const rows = Object.entries(whole.properties).map(([field, of]) =>
    make("tr", {}, make("td", {}, make("code", {}, field)), make("td", {}, inWords(of)),
      make("td", {}, (whole.required ?? []).includes(field) ? "required" : "default" in of ? `default ${JSON.stringify(of.default)}` : "")));
  const about = whole.description ? [make("p", {}, whole.description)] : [];
  return make("div", {}, ...about, make("table", {}, ...rows));
};

const content = (title, contents, components) =>
  Object.entries(contents ?? {}).map(([media, { schema }]) =>
    make("section", {}, make("h4", {}, `${title} `, make("code", {}, media)), fields(schema, components)));

const route = (method, path, operation, components) => {
  const parameters = (operation.parameters ?? []).map((each) =>
    make("tr", {}, make("td", {}, make("code", {}, each.name)), make("td", {}, `in ${each.in}`),
      make("td", {}, inWords(each.schema)),
      make("td", {}, each.required ? "required" : "default" in each.schema ? `default ${JSON.stringify(each.schema.default)}` : "")));
  return make("details", {},
    make("summary", {}, make("span", { className: "method" }, method.toUpperCase()), make("code", {}, path),
      ` ${operation.summary}`, make("span", { className: "scope" }, `scope ${operation["x-penstock-scope"]}`)),
    make("p", {}, operation.description ?? ""),
    make("table", {}, ...parameters),
    ...content("Body", operation.requestBody?.content, components),
    ...Object.entries(operation.responses).filter(([status]) => status !== "default")
      .flatMap(([status, reply]) => reply.content ? content(`Answer ${status}`, reply.content, components)
        : [make("h4", {}, `Answer ${status}: ${reply.description}`)]));
};

const show = async () => {
  const description = await (await fetch("/openapi.json")).json();
  const components = description.components.schemas;
  document.querySelector("#version").textContent = description.info.version;
  const rooms = new Map();
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const room = operation.tags[0];
      if (!rooms.has(room)) rooms.set(room, []);
      rooms.get(room).push(route(method, path, operation, components));
    }
  }
  document.querySelector("#rooms").append(...[...rooms.keys()].map((room) => make("a", { href: `#${room}` }, room)));
  document.querySelector("#routes").replaceChildren(...[...rooms].flatMap(([room, routes]) =>
    [make("h2", { id: room }, room), ...routes]));
};

show().catch((error) => { document.querySelector("#routes").textContent = `The description could not be loaded: ${error}`; });
