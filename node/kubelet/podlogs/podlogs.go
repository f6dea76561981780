// Package podlogs reads and rotates the log files that runtimes write in the
// CRI format: a time, a stream, a tag that says whether a line goes on, and
// the text. It writes only when it rotates.
package podlogs
