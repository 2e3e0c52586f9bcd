"use strict";
// Numbers rounded to the safe side, character by character as hush.numbers and hush.report.markup do it.
const numbers = (() => {
  // The value with this many significant digits, never below it (up) or above it (down).
  function rounded(value, digits, up, trim) {
    if (value === 0) return "0";
    let [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    let whole = parseInt(mantissa.replace(".", ""), 10), power = parseInt(exponent, 10) - digits + 1;
    const shown = Number(`${whole}e${power}`);
    if (up && shown < value) whole += 1;
    if (!up && shown > value) whole -= 1;
    if (String(whole).length < digits) { whole = whole * 10 + 9; power -= 1; }  // 1000 - 1 becomes 999.9
    const text = written(whole, power, digits);
    return trim ? text.replace(/(\.\d*?)0+(?=e|$)/, "$1").replace(/\.(?=e|$)/, "") : text;
  }

  function written(whole, power, digits) {
    let text = String(whole);
    if (text.length > digits) { text = text.slice(0, digits); power += 1; }  // 9999 + 1 becomes 10000
    const first = power + digits - 1;  // exponent of the leading digit
    if (first < -4 || first >= digits) {
      const sign = first < 0 ? "-" : "+", size = String(Math.abs(first)).padStart(2, "0");
      return `${text[0]}.${text.slice(1)}e${sign}${size}`;
    }
    if (first < 0) return `0.${"0".repeat(-first - 1)}${text}`;
    return `${text.slice(0, first + 1)}.${text.slice(first + 1)}`.replace(/\.$/, "");
  }

  return {  // trim: without trailing zeros
    atMost: (value, digits = 4, trim = true) => rounded(value, digits, true, trim),
    atLeast: (value, digits = 4, trim = true) => rounded(value, digits, false, trim),
    percent: share => {  // the decimal point moved by two digits: multiplying by 100 adds an error that rounding shows
      const [mantissa, exponent = "0"] = String(share).split("e");
      return Number(`${mantissa}e${Number(exponent) + 2}`);
    },
    grouped: count => String(count).replace(/\B(?=(\d{3})+$)/g, ","),
  };
})();
