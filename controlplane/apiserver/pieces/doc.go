// Package pieces compresses long lists piece by piece, and keeps the pieces, so
// that a list of which little has changed since somebody last asked costs little
// more than its bytes on the wire. A piece is a run of neighbouring records; a
// change invalidates the piece it is in.
//
// It reads records, and writes whole gzip documents.
package pieces
