// Package watchcache is the in-memory truth that every read and watch is
// served from. It reads one ordered stream from storage, keeps each object
// revision as one immutable Record in copy-on-write trees, and writes objects
// to storage with a compare on the revision.
//
// One applier turns each change into a Record and publishes it. Reads load a
// tree's root once and walk it: they never block the applier, nor it them. A
// watcher is a cursor in an append-only log.
package watchcache
