// Package embed stands in for etcd's own: kine's server wants one constant of
// it, which would link all of etcd. It reads and writes nothing.
package embed

// DefaultMaxRequestBytes is about how much of a list goes into one message.
const DefaultMaxRequestBytes = 3 << 19
