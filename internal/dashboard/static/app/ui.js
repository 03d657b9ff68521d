// The design system: what pages are made of. Each part is described where it is.
export { Page, Card, Empty, ErrorBox, Skeleton, Badge, StateBadge, stateWords } from "./ui/blocks.js";
export { Button, ButtonLink, Copy, Menu, Tabs } from "./ui/buttons.js";
export { Dialog, confirm, toast, Toast } from "./ui/overlays.js";
export { Field, Select, Check, Search } from "./ui/forms.js";
export { Table } from "./ui/table.js";
export { Time, Num, Duration, Text, Progress, now } from "./ui/values.js";
export { useLoad } from "./ui/load.js";
export { Icon } from "./ui/icons.js";
