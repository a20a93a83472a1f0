{
  const section = document.currentScript.parentElement;
  const slider = section.querySelector("input");
  const show = () => {
    for (const part of section.querySelectorAll("[data-frame]"))
      part.style.display = part.dataset.frame === slider.value ? "" : "none";
    slider.setAttribute("aria-valuetext", section.querySelector("output").innerText);
  };
  slider.addEventListener("input", show);
  slider.closest("label").style.display = "";
  show();
}
