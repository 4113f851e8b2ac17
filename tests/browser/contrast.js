// Texts on the page whose contrast with what lies behind them is under `least`: [[ratio, text, where]].
(least) => {
  const parse = text => {
    const [r, g, b, a = 1] = (text.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
    const size = text.startsWith('color(srgb') ? 255 : 1;
    return [r * size, g * size, b * size, a];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((c, i) => c * a + under[i] * (1 - a));
  const luminance = rgb => rgb.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = el => {
    if (!el) return [255, 255, 255];
    const style = getComputedStyle(el);
    const painted = over(parse(style.backgroundColor), behind(el.parentElement));
    return painted;
  };
  const faded = el => el ? Number(getComputedStyle(el).opacity) * faded(el.parentElement) : 1;
  const ratio = (colour, el) => {
    const back = behind(el), [r, g, b, a] = parse(colour);
    const front = over([r, g, b, a * faded(el)], back), [x, y] = [luminance(front), luminance(back)];
    return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
  };
  const bad = [];
  const check = (colour, el, text) => {
    const found = ratio(colour, el);
    if (found < least - 0.005) {
      const up = el.closest('[id]'), where = `${el.tagName.toLowerCase()}.${el.getAttribute('class') || ''} in #${up?.id}`;
      bad.push([+found.toFixed(2), text.trim().slice(0, 40), where]);
    }
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const el = node.parentElement;
    if (!node.data.trim() || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'OPTION'].includes(el.tagName)) continue;
    if (!el.checkVisibility({visibilityProperty: true})) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (box.width < 1 || box.height < 1) continue;
    const style = getComputedStyle(el);
    check(el instanceof SVGElement ? style.fill : style.color, el, node.data);
  }
  for (const el of document.querySelectorAll('input, textarea')) {
    if (!el.checkVisibility()) continue;
    if (el.placeholder) check(getComputedStyle(el, '::placeholder').color, el, el.placeholder);
    if (el.value && ['text', 'search', 'number', 'textarea'].includes(el.type)) check(getComputedStyle(el).color, el, el.value);
  }
  for (const el of document.querySelectorAll('select')) if (el.checkVisibility()) check(getComputedStyle(el).color, el, el.value || 'select');
  return bad;
}
