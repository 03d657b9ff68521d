// What all modules build pages with: Preact by tagged templates, hooks and signals.
import { h, render, Fragment, Component, cloneElement, options } from "preact";
import { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useErrorBoundary, useId } from "preact/hooks";
import htm from "htm";
import { signal, computed, effect, batch, untracked, useSignal, useComputed, useSignalEffect } from "@preact/signals";

export const html = htm.bind(h);

// ROOT is the path prefix, such as /tranche; usually "". Pages write paths without it.
export const ROOT = new URL(import.meta.url).pathname.split("/static/")[0];

// rooted adds ROOT to a path.
export const rooted = (path) => (path.startsWith("/") && !path.startsWith(ROOT + "/") ? ROOT + path : path);

const before = options.vnode;
options.vnode = (node) => {
  if (node.type === "a" && node.props.href) node.props.href = rooted(node.props.href);
  before?.(node);
};
export {
  h, render, Fragment, Component, cloneElement,
  useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useErrorBoundary, useId,
  signal, computed, effect, batch, untracked, useSignal, useComputed, useSignalEffect,
};
