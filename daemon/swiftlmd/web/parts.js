// Parts of the page that are fetched when they are first shown: the first view stays small.
import { html, useEffect, useState } from "./vendor/htm-preact.js";

// A component that stands for the one that `load` brings; asked again when the link changes.
export function lazily(load) {
  let Part = null;
  return function Lazy(props) {
    const [, draw] = useState(0);
    useEffect(() => {
      if (!Part) load().then((found) => { Part = found; draw((count) => count + 1); }, () => {});
    }, [props.status?.link]);
    return Part ? html`<${Part} ...${props} />` : null;
  };
}

// What draws Markdown: needed by answers alone. `renderer()` is null until it is here.
let drawing = null;
let coming = null;
export const renderer = () => drawing;
export function loadRenderer() {
  coming ??= import("./markdown.js").then((found) => { drawing = found.Growing; }, () => { coming = null; });
  return coming;
}
