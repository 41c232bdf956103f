// The icons of Lucide that the page uses, and buttons that carry one.
import { html } from "./vendor/htm-preact.js";
import shapes from "./vendor/lucide.js";

export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"
  dangerouslySetInnerHTML=${{ __html: shapes[name] || "" }} />`;

// Its name is read aloud by screen readers and shown under the pointer.
export const IconButton = ({ icon, name, class: more = "", ...rest }) => html`<button type="button"
  class=${`icon-button ${more}`} aria-label=${name} title=${name} ...${rest}><${Icon} name=${icon} /></button>`;
