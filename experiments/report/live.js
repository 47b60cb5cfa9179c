// On a live page: ask the server every few seconds whether anything was written, and if so read the page again. What
// was typed into the filter stays.
(() => {
  const filter = document.getElementById("filter");
  const kept = sessionStorage.getItem("filter");
  if (kept) {
    filter.value = kept;
    filter.dispatchEvent(new Event("input"));
  }
  window.addEventListener("beforeunload", () => sessionStorage.setItem("filter", filter.value));
  const status = document.querySelector(".status");
  const told = status.textContent;
  let version = null;
  const ask = async () => {
    try {
      const now = await (await fetch("version", { cache: "no-store" })).text();
      status.textContent = told;
      if (version !== null && now !== version) location.reload();
      version = now;
    } catch {
      status.textContent = told + " · the dashboard has stopped; the runs go on without it";
    }
  };
  ask();
  setInterval(ask, 5000);
})();
