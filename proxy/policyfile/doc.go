// Package policyfile follows one policy file, so that whoever asks after a writer is done is judged by what was written.
//
// A file is a poor signal: its writers truncate and fill it in place, rename another over it, swap a symbolic link,
// or write into a bind mount, and none of them says when it is done. What follows is what a caller may rely on.
//
// # Freshness
//
// [File.Fresh] called after a writer's last write, rename or unlink has returned gives that content, with OnChange
// done for it. It needs no notification: it compares the file's identity, size and times with those of what was read.
// Times have a granularity (a timer tick, or up to two seconds on old file systems), within which a file of the same
// size can change unseen; so for that long after a change the file is read anew each time, and only then do the times
// alone count. What cannot be seen: writes through mmap(2) that were not synced, and a network file system that
// answers from a stale cache although it was asked not to.
//
// [File.Run] notices changes while nobody asks: at once by inotify, else by looking 20 times a second where
// inotify cannot be had or does not see the writer (network and user-space file systems, links into other
// directories).
//
// # Half-written files
//
// Content counts when two reads in a row agree and the file's status did not change around them. A document that
// begins with "{" is whole when it decodes: no proper prefix of it does, so a writer that truncates and fills it in
// order is never caught half-way. Other documents (YAML) can be valid when cut off; they count when they have not
// changed for 20 ms. A writer that takes longer pauses must write JSON, or rename a finished file into place. A
// writer that overwrites more than a page in place without truncating can be caught with a mixture that decodes, for
// as long as its write lasts.
//
// # States
//
// [Current]: the content is good. [Pending]: the file is empty, cut off (Decode says [io.ErrUnexpectedEOF]), holds NUL
// bytes, keeps changing, or is mounted by itself and was replaced outside; Fresh waits for it, up to Wait from when
// this was first seen, and the value before stays in force meanwhile. [Refused]: the content is whole but wrong, or
// the file is gone, unreadable, too large, no regular file, or still pending after Wait; this lasts until the content
// is good again.
package policyfile
