// Package transcode writes the JSON of a Kubernetes object from its protobuf
// message, without making the object in between: what encoding/json would write
// of the decoded object, byte for byte, in a tenth of the time and with no
// garbage. It reads the Go types' json and protobuf tags, once per type, and the
// bytes it is given; it writes to the buffer it is given.
package transcode
