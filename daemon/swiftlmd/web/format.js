export function bytes(count) {
  if (!count) return "0";
  const unit = Math.min(4, Math.floor(Math.log(count) / Math.log(1000)));
  return `${(count / 1000 ** unit).toFixed(unit > 2 ? 1 : 0)} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
}

export const percent = (part) => `${Math.round(100 * (part || 0))} %`;

export function seconds(value) {
  if (value < 90) return `${Math.round(value)} s`;
  return value < 5400 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

// Without its owner, whom a narrow list has no room for, unless two models differ only in that.
export const shortest = (name, models) => {
  const last = (one) => one.split("/").pop();
  return models.filter((one) => last(one.model) === last(name)).length > 1 ? name : last(name);
};
