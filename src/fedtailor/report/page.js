const root = document.documentElement, button = document.querySelector("button.toggle");
const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
try { const kept = localStorage.getItem("fedtailor-theme"); if (kept) root.dataset.theme = kept; } catch (e) {}
button.hidden = false;
button.addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  try { localStorage.setItem("fedtailor-theme", root.dataset.theme); } catch (e) {}
  name();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
name();
