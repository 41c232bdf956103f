// The libraries that only some answers need: they are fetched with the first that does.
const LONGEST = 50_000; // characters; longer code keeps one colour

function lazy(address) {
  let library = null;
  let coming = null;
  // At once where it is here: a block that is drawn again must not flicker.
  return (use) => {
    if (library) { use(library); return; }
    coming ??= import(address).then((found) => { library = found.default; });
    coming.then(() => use(library), () => { coming = null; });
  };
}

const withHighlighter = lazy("./vendor/highlight.js");
const withMath = lazy("./vendor/temml.js");

// The library escapes the code and adds spans, nothing else.
export function colour(code, language) {
  const text = code.textContent;
  if (text.length > LONGEST) return;
  withHighlighter((library) => {
    if (library.getLanguage(language)) code.innerHTML = library.highlight(text, { language, ignoreIllegals: true }).value;
  });
}

// `place` holds the TeX; what cannot be read stays as it was written.
export function setMath(place) {
  const tex = place.textContent;
  withMath((library) => {
    const shown = document.createElement("span");
    try {
      library.render(tex, shown, { displayMode: place.dataset.math === "block", throwOnError: true, trust: false, maxExpand: 500, maxSize: [20, 40] });
      place.replaceChildren(...shown.childNodes);
    } catch { /* not TeX after all */ }
  });
}
