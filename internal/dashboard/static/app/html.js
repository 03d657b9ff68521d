// What all modules build pages with: Preact by tagged templates, hooks and signals.
import { h, render, Fragment, Component, cloneElement } from "preact";
import { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useErrorBoundary, useId } from "preact/hooks";
import htm from "htm";
import { signal, computed, effect, batch, untracked, useSignal, useComputed, useSignalEffect } from "@preact/signals";

export const html = htm.bind(h);
export {
  h, render, Fragment, Component, cloneElement,
  useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useErrorBoundary, useId,
  signal, computed, effect, batch, untracked, useSignal, useComputed, useSignalEffect,
};
