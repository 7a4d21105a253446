#!/bin/sh
# Stands for the service of the guides that pays money back.
echo "refunding $(cat) of the $TENURE_GROUP"
