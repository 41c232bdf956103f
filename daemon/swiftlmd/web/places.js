// Where the page is: the view, and behind a slash what of it (`#chat/ID`). The address decides.
export const VIEWS = ["chat", "models", "monitor", "settings"];

export const place = () => {
  const [view, path = ""] = location.hash.slice(1).split("/");
  return VIEWS.includes(view) ? { view, path } : { view: "chat", path: "" };
};

export const go = (address) => { location.hash = address; };
