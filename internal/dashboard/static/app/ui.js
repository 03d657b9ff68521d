// The design system: the parts of all pages, described where they are defined.
export { Page, Card, Empty, ErrorBox, Skeleton, Badge, StateBadge, stateWords } from "./ui/blocks.js";
export { Button, ButtonLink, Copy, Menu, Tabs } from "./ui/buttons.js";
export { Dialog, confirm, toast, Toast } from "./ui/overlays.js";
export { Field, Select, Check, Search } from "./ui/forms.js";
export { Table } from "./ui/table.js";
export { Time, Num, Duration, Text, Tile, Progress, now } from "./ui/values.js";
export { useLoad } from "./ui/load.js";
export { Icon } from "./ui/icons.js";
