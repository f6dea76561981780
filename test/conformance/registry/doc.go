// Package registry compares what knarr knows of upstream's programs by heart, their feature
// gates and their flags, with upstream's. It reads those lists and writes nothing.
package registry
