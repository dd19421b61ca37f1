// Matrix units; nothing here yet.
