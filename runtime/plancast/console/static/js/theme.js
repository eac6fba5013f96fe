// Runs before the page is painted, so that nobody who reads in the dark is shown a white page first.
(() => {
  const KEY = "plancast.theme";
  const CHOICES = ["auto", "light", "dark"];
  const read = () => {
    try {
      const kept = localStorage.getItem(KEY);
      return CHOICES.includes(kept) ? kept : "auto";
    } catch {
      return "auto"; // storage can be forbidden
    }
  };
  const apply = (choice) => {
    document.documentElement.dataset.theme = choice;
  };
  apply(read());
  window.plancastTheme = {
    current: read,
    next: () => {
      const choice = CHOICES[(CHOICES.indexOf(document.documentElement.dataset.theme) + 1) % CHOICES.length];
      try {
        localStorage.setItem(KEY, choice);
      } catch {
        // It lasts as long as the page, then.
      }
      apply(choice);
      return choice;
    },
  };
})();
