"use strict";
(() => {
  const lost = document.getElementById("lost");
  const live = document.getElementById("live");
  const every = () => Number(document.querySelector("main").dataset.refresh) * 1000;
  let postponed = 0;
  let timer = 0;

  // A selection that is being read or copied is not torn away, for a minute at most.
  const reading = () => {
    const selection = document.getSelection();
    return selection !== null && !selection.isCollapsed && (postponed += every()) < 60000;
  };

  const swap = (page) => {
    const main = document.querySelector("main");
    const fresh = page.querySelector("main");
    if (!fresh) throw new Error("not our page");
    const focused = document.activeElement && document.activeElement.id;
    const open = [...main.querySelectorAll("details[open]")].map((element) => element.id);
    const sideways = [...main.querySelectorAll(".scroll")].map((element) => [element.id, element.scrollLeft]);
    const changed = main.dataset.summary !== fresh.dataset.summary;
    const typed = document.getElementById("q")?.value;
    main.replaceWith(document.adoptNode(fresh));
    const box = document.getElementById("q");
    if (box && typed !== undefined) box.value = typed;
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    for (const [id, left] of sideways) document.getElementById(id)?.scrollTo({ left });
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    if (changed) live.textContent = fresh.dataset.summary;
    document.title = page.title;
    document.querySelector("link[rel=icon]").href = page.querySelector("link[rel=icon]").href;
  };

  const refresh = async () => {
    clearTimeout(timer);
    try {
      if (!document.hidden && !reading()) {
        postponed = 0;
        const response = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(10000) });
        swap(new DOMParser().parseFromString(await response.text(), "text/html"));
        lost.hidden = true;
      }
    } catch {
      lost.hidden = false;
    }
    timer = setTimeout(refresh, every());
  };

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });
  timer = setTimeout(refresh, every());
})();
