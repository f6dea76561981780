package podstatus

import "strings"

// MaxMessage bounds the message of an event and of a waiting container. Such
// messages hold text from outside, such as the answer of a registry or the
// address a probe was redirected to, and are stored in etcd.
const MaxMessage = 4 << 10

// Truncate shortens a message to MaxMessage bytes.
func Truncate(text string) string {
	if len(text) <= MaxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:MaxMessage], "") + "..."
}
