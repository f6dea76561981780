// Package endpoints is the verbs of the API over HTTP: get, list, watch,
// create, update, patch, apply, delete and deletecollection, with discovery and
// OpenAPI. It reads and writes objects through watchcache, by the rules that
// registry declares for each kind. It asks admission about each write,
// serviceallocation for what a Service needs, and connect to open connections to
// kubelets and to what is proxied.
//
// Reads write bytes that records already hold. Writes take the current record
// from the cache, run admission and validation on a copy, and put it with a
// compare on its revision; a race lost is tried again on what won.
package endpoints
